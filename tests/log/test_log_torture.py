"""The crash test itself: it finds what it is there to find, and leaves alone what it has not made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import Log, LogInputError, LogSpec, open_store
from millstream.testing.torture import LOG, ScratchStore, TorturePlan, WatchedProcess, scratch_beside, torture
from millstream.testing.torture.checks import ConfirmedPack, OrderCheck, ReaderDelivery, check_confirmed, check_delivery
from millstream.testing.torture.messages import PackPosition, body, pack, parse


@pytest.fixture
def log() -> Log:
    return open_store("memory://").log(LogSpec(LOG))


def append(log: Log, *packs: list[bytes]) -> None:
    with log.writer() as writer:
        for messages in packs:
            writer.append(messages)


def whole(run: int, thread: int, turn: int, count: int = 3) -> list[bytes]:
    return list(pack(run, thread, turn, count))


def test_packs_in_order_are_found_to_be_so_part_after_part(log: Log) -> None:
    order = OrderCheck()
    append(log, whole(1, 0, 1), whole(1, 2, 1), whole(1, 1, 1))
    assert list(order.check(log)) == []
    append(log, whole(2, 0, 2), whole(1, 2, 2), whole(2, 1, 1))
    assert list(order.check(log)) == []
    assert (order.sequence, order.checked) == (2, 18)


@pytest.mark.parametrize(
    ("packs", "told"),
    [
        ([whole(1, 0, 1), whole(1, 0, 1)], "begins pack 1 of .* where pack 2 is due"),
        ([whole(1, 0, 1), whole(1, 0, 3)], "begins pack 3 of .* where pack 2 is due"),
        ([whole(1, 0, 1)[:1] + whole(1, 0, 1)[2:]], "a pack is not whole"),
        ([whole(1, 0, 1)[:-1], whole(2, 0, 2)], "a pack is not whole"),
        ([whole(1, 1, 1)[:-1], whole(2, 1, 1)], "a pack is not whole"),
        ([whole(1, 0, 1), whole(1, 0, 2)[:-1]], "the log ends with .*: a pack is not whole"),
        ([[b"something"]], "holds what nobody sent"),
        ([[body(PackPosition(1, 0, 3, 0, 1))[:-1]]], "holds what nobody sent"),
    ],
    ids=[
        "twice",
        "missing",
        "torn",
        "without its end",
        "of a thread, without its end",
        "without its end, at the end",
        "foreign",
        "changed",
    ],
)
def test_what_is_stored_twice_torn_or_missing_is_told(log: Log, packs: list[list[bytes]], told: str) -> None:
    append(log, *packs)
    problems = list(OrderCheck().check(log))
    assert re.search(told, problems[0])


def test_what_was_confirmed_and_is_not_there_is_told(log: Log) -> None:
    append(log, whole(1, 0, 1))
    assert list(check_confirmed(log, [ConfirmedPack(1, 0, 1, 1, 3)])) == []
    for wrong in (ConfirmedPack(1, 0, 2, 1, 3), ConfirmedPack(1, 0, 2, 4, 6), ConfirmedPack(2, 0, 1, 1, 3)):
        assert len(list(check_confirmed(log, [wrong]))) == 1


@pytest.mark.parametrize(
    ("lines", "pointer", "told"),
    [
        (["given 6 9", "acked 9 0.0", "given 10 12"], 9, []),
        (["given 6 9", "acked 9 99.0"], 5, []),
        (["given 6 9", "acked 9 0.0"], 5, ["id 9 was acknowledged longer ago than the window, and the pointer is 5"]),
        (["given 6 9"], 10, ["the pointer is 10, but its reader was given ids up to 9"]),
        (["given 7 9"], 5, ["a reader was given ids 7 to 9 where 6 was next"]),
        (["given 6 9", "given 9 9"], 5, ["a reader was given ids 9 to 9 where 10 was next"]),
    ],
)
def test_what_a_reader_got_and_left_is_compared(lines: list[str], pointer: int, told: list[str]) -> None:
    assert list(check_delivery(ReaderDelivery(5, lines, 100.0), pointer, server_was_away=False)) == told


def test_a_message_says_where_it_stands() -> None:
    place = PackPosition(3, 1, 77, 12, 300)
    assert parse(body(place)) == place
    assert parse(b"") is None


def test_the_command_kills_for_real_and_leaves_nothing_behind(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    store = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(store) as opened, opened.log(LogSpec(LOG)).writer() as writer:
        writer.append([b"mine"])
    assert run(["log", "torture", "--store", store, "--kills", "3", "--seed", "7", "--json"]) == 0
    report = json.loads(capfdbinary.readouterr().out)
    assert report["writers_killed"] + report["readers_killed"] >= 3
    assert (report["seed"], report["problems"]) == (7, [])
    assert report["messages_stored"] > 0
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} <= {"log.db"}
    with open_store(store) as opened:
        assert [m.body for batch in opened.log(LogSpec(LOG)).read() for m in batch] == [b"mine"]


def test_a_store_that_is_damaged_between_two_kills_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    look = OrderCheck.check

    def damaging(self: OrderCheck, log: Log) -> Iterator[str]:
        for path in tmp_path.glob("*/log"):
            with path.open("r+b") as file:
                file.write(b"no database")
        return look(self, log)

    monkeypatch.setattr(OrderCheck, "check", damaging)
    assert run(["log", "torture", "--store", f"sqlite:///{tmp_path / 'log.db'}", "--kills", "5", "--seed", "7"]) == 1
    said = capfd.readouterr()
    assert "the log cannot be looked at" in said.err
    assert "the store is kept" in said.out
    assert (tmp_path / "millstream-torture-00000007").is_dir()


def test_a_writer_that_ended_before_it_was_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedProcess, "has_ended", property(lambda _: True))
    url = f"sqlite:///{tmp_path / 'log.db'}"
    report = torture(ScratchStore(url, url, lambda: None), TorturePlan(kills=1, seed=7))
    assert any(problem.startswith("a writer ended by itself") for problem in report.problems)


def test_the_command_uses_nothing_that_is_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream-torture-00000007").mkdir()
    store = f"segments:///{tmp_path / 'folder'}"
    assert run(["log", "torture", "--store", store, "--seed", "7"]) == 2
    assert "already exists" in capfd.readouterr().err
    assert run(["log", "torture", "--store", f"sqlite:///{tmp_path}/none/log.db"]) == 3
    assert run(["log", "torture", "--store", store, "--keep", "--private", "mariadb"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["millstream-torture-00000007"]


def test_a_store_that_cannot_be_tortured_is_refused_without_its_password() -> None:
    with pytest.raises(LogInputError, match="cannot test") as caught:
        scratch_beside("ftp://me:s3cret@host/x", "name")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("options", ["", "?layout=nerve&shards=2"])
def test_a_database_of_its_own_is_made_on_the_same_server_and_dropped(mariadb: str, options: str) -> None:
    url = f"{mariadb}never_made{options}"
    scratch = scratch_beside(url, "millstream-torture-test")
    with open_store(scratch.url) as store:
        store.log(LogSpec(LOG))
    with pytest.raises(LogInputError, match="already exists"):
        scratch_beside(url, "millstream-torture-test")
    scratch.remove()
    scratch_beside(url, "millstream-torture-test").remove()
