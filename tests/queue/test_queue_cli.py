"""``millstream queue``, as a person or a script uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import open_store
from millstream.queue import LogWorkQueue, queue_log


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LogWorkQueue]:
    """The queue ``bits`` of the node in ``tmp_path``, with one dead task and two that are ready."""
    store = open_store(f"sqlite:///{tmp_path}/log.db")
    with store, LogWorkQueue(store.log(queue_log("bits"))) as queue:
        queue.put([b"dead", b"ready", b"ready"])
        queue.dead_letter(queue.lease(1, visibility=30)[0], cause="StoreError: gone")
        yield queue


def test_depth_is_told_while_somebody_works_on_the_queue(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "depth", "--data", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "bits  2 ready  0 leased  0 delayed  1 dead\n"
    queue.lease(1, visibility=600)
    assert run(["queue", "depth", "bits", "--json", "--data", str(tmp_path)]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["queue"], facts["ready"], facts["leased"], facts["exact"]) == ("bits", 1, 1, True)


def test_dead_tasks_are_listed_with_their_cause(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "dead", "bits", "--json", "--data", str(tmp_path)]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["body"], facts["cause"], facts["attempts"]) == ("dead", "StoreError: gone", 1)
    assert run(["queue", "dead", "bits", "--after", str(facts["task_id"]), "--data", str(tmp_path)]) == 0
    assert capfd.readouterr().out == ""


def test_redriven_tasks_are_ready_again(queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "redrive", "bits", "--data", str(tmp_path)]) == 4
    assert "bits" in capfd.readouterr().err
    queue.close()
    assert run(["queue", "redrive", "bits", "77", "--data", str(tmp_path)]) == 0
    assert capfd.readouterr().out == "bits: 0 tasks ready again\n"
    assert run(["queue", "redrive", "bits", "--json", "--data", str(tmp_path)]) == 0
    assert json.loads(capfd.readouterr().out) == {"queue": "bits", "redriven": 1}


def test_a_dead_task_is_amended_redriven_at_a_rate_and_others_discarded(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for lease in queue.lease(2, visibility=30):
        queue.dead_letter(lease, cause="drill")
    first, second, third = (task.task_id for task in queue.dead())
    queue.close()
    (tmp_path / "better").write_bytes(b"alive")
    data = ["--data", str(tmp_path)]
    assert run(["queue", "amend", "bits", str(first), str(tmp_path / "better"), *data]) == 0
    assert run(["queue", "amend", "bits", "999", str(tmp_path / "better"), *data]) == 3
    assert run(["queue", "discard", "bits", str(third), "--json", *data]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"queue": "bits", "discarded": 1}
    assert run(["queue", "redrive", "bits", "--per-second", "0", *data]) == 2
    assert "'--per-second'" in capfd.readouterr().err
    assert run(["queue", "redrive", "bits", "--per-second", "0.01", *data]) == 0
    with open_store(f"sqlite:///{tmp_path}/log.db") as store, LogWorkQueue(store.log(queue_log("bits"))) as opened:
        depth = opened.depth()
        assert (depth.ready, depth.delayed, depth.dead) == (1, 1, 0) and second > first
        assert [lease.body for lease in opened.lease(9, visibility=30)] == [b"alive"]


def test_a_queue_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/log.db").close()
    for command in ("depth", "dead", "redrive"):
        assert run(["queue", command, "bits", "--data", str(tmp_path)]) == 3
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        assert store.logs() == []


@pytest.mark.parametrize(
    "command", [["depth", "bit"], ["dead", "bit"], ["redrive", "bit", "1"], ["discard", "bit", "1"]]
)
def test_a_queue_that_does_not_exist_is_called_a_queue(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert run(["queue", *command, "--data", str(tmp_path)]) == 3
    err = capfd.readouterr().err
    assert "there is no queue 'bit'" in err and "`millstream queue depth`" in err


def test_a_bare_store_is_shown_also_where_the_settings_name_a_broker(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_QUEUE__BROKER", "rocketmq://127.0.0.1:1")
    queue.close()
    bare = ["--store", f"sqlite:///{tmp_path}/log.db", "--data", str(tmp_path)]
    assert run(["queue", "depth", "bits", *bare]) == 0
    assert capfd.readouterr().out == "bits  2 ready  0 leased  0 delayed  1 dead\n"
    assert run(["queue", "dead", "bits", *bare]) == 0
    assert "StoreError: gone" in capfd.readouterr().out
    assert run(["queue", "redrive", "bits", *bare]) == 0
    assert capfd.readouterr().out == "bits: 1 task ready again\n"


def test_the_body_of_a_dead_task_that_is_not_text_is_printed_whole(
    queue: LogWorkQueue, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.put([b"\xff\0"])
    leases = queue.lease(3, visibility=30)
    queue.dead_letter(next(lease for lease in leases if lease.body == b"\xff\0"), cause="odd")
    assert run(["queue", "dead", "bits", "--json", "--data", str(tmp_path)]) == 0
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert facts["body_base64"] == "/wA=" and "body" not in facts
