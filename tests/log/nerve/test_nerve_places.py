"""Where queues are: hosts, settings, URLs, and copies into blocks and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import LogInputError, copy_consumers, copy_log, open_store
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.nerve import NerveHost, NerveQueue, is_nerve, parse_nerve
from support.nerve_original import NAME, SPEC, OriginalQueue, bodies

# Places


def test_one_definition_leads_to_the_queue_on_each_of_its_hosts() -> None:
    queue = NerveQueue(
        "NQLocalTest",
        {
            "127.0.0.1": NerveHost(
                dbname="nerve", port=3307, table_parallelism=8, pointers_parallelism=2, max_rps_per_thread=50
            ),
            "::1": NerveHost(dbname="nerve"),
        },
        user="m@e",
        password_file="/run/password",
    )
    assert queue.url("127.0.0.1") == (
        "mysql://m%40e@127.0.0.1:3307/nerve?layout=nerve&shards=8&pointers=2&rps=50&password_file=/run/password"
    )
    assert queue.url("::1").startswith("mysql://m%40e@[::1]:3306/nerve?layout=nerve&shards=4&pointers=1&password")
    with pytest.raises(LogInputError, match=r"not on 'elsewhere'; it is on 127\.0\.0\.1, ::1"):
        queue.url("elsewhere")


def test_settings_name_queues_and_their_hosts(queues: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = parse_address(queues)
    config = tmp_path / "millstream.toml"
    config.write_text(
        f"""
        [log.nerve.{NAME}.hosts."{place.host}"]
        dbname = "{place.database}"
        port = {place.port}
        table_parallelism = 2
        """
    )
    for store in (f"nerve:{NAME}", f"nerve:{NAME}@{place.host}"):
        assert run(["log", "create", NAME, "--config", str(config), "--store", store]) == 0
    with open_store(f"{queues}?layout=nerve&shards=2") as opened:
        assert opened.logs() == [NAME]
    for store, told in (
        (f"nerve:{NAME}@elsewhere", "is not on 'elsewhere'"),
        ("nerve:other", "unknown nerve queue 'other'; describe the queue in a section [log.nerve.other]"),
    ):
        assert run(["log", "list", "--config", str(config), "--store", store]) == 2
        assert told in capfd.readouterr().err
    config.write_text(config.read_text() + "colour = 1")
    assert run(["log", "list", "--config", str(config), "--store", f"nerve:{NAME}"]) == 2
    assert "colour" in capfd.readouterr().err


def test_a_place_shows_itself_without_its_password_and_opens_again() -> None:
    place = parse_nerve("mysql://me:s3cret@host/db?layout=nerve&shards=4&pointers=2&rps=50&driver=text")
    assert (place.shards, place.pointers, place.rps, place.database.driver) == (4, 2, 50, "text")
    assert "s3cret" not in f"{place!r} {place}"
    again = parse_nerve(place.url.replace(":***", ":s3cret"))
    assert again == place
    assert not is_nerve("mysql://me@host/db")
    for wrong in ("layout=blocks", "layout=nerve&shards=x", "layout=nerve&shards=-1", "layout=nerve&colour=red"):
        with pytest.raises(LogInputError) as caught:
            open_store(f"mysql://me:s3cret@host/db?{wrong}")
        assert "s3cret" not in str(caught.value)


def test_doctor_looks_at_the_server_of_a_queue(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--store", url]) in {0, 1}
    assert "innodb_flush_log_at_trx_commit" in capfd.readouterr().out


# Copies


def test_a_queue_is_copied_into_blocks_and_back_with_its_ids_and_consumers(
    original: OriginalQueue, url: str, other_queues: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original.move("billing", 40)
    blocks, back = f"sqlite:///{tmp_path / 'log.db'}", f"{other_queues}?layout=nerve&shards=2"
    assert run(["log", "copy", "--consumers", url, blocks, NAME]) == 0
    assert run(["log", "copy", blocks, back, NAME]) == 2
    assert "--bodies" in capfd.readouterr().err
    assert run(["log", "copy", "--consumers", "--bodies", blocks, back, NAME]) == 0
    for target in (blocks, back):
        with open_store(target) as store:
            log = store.log(SPEC, create=False)
            assert bodies(log) == [b"%d" % n for n in range(1, 101)]
            assert log.pointer("billing") == 40
            assert log.verify().ok
    original.send([b"more"] * 5)
    assert run(["log", "copy", url, blocks, NAME]) == 0
    assert "ids 101 to 105" in capfd.readouterr().out
    with open_store(blocks) as store:
        assert all(m.received_at for batch in store.log(SPEC).read() for m in batch), "the time of the copy"


def test_a_queue_gets_another_number_of_tables_by_copying_it_into_another_database(
    original: OriginalQueue, url: str, other_queues: str
) -> None:
    with open_store(url, read_only=True) as old, open_store(f"{other_queues}?layout=nerve&shards=5") as new:
        source, target = old.log(SPEC, create=False), new.log(SPEC)
        assert copy_log(source, target).messages == 100
        original.move("billing", 9)
        assert copy_consumers(source, target) == {"billing": 9}
    theirs = OriginalQueue(parse_address(other_queues), NAME, 5, 1)
    assert theirs.packets(1, 200) == [(n, b"%d" % n) for n in range(1, 101)]
    assert (theirs.pointer(), theirs.pointer("billing")) == (100, 9)
    theirs.close()
