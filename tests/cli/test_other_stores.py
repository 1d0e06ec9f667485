"""Commands with --store: the states that a node keeps by the names of logs are those of one log store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from millstream.log import LogSpec, Message, open_store
from millstream.node import Node
from millstream.settings import load_settings
from support.commands import CommandResult, run_command

SETTINGS = '[batching]\nwindow = "1s"\nmax_delay = "1s"\n'
SECOND = 1_000_000


def append(store: str, first: int, count: int) -> None:
    """Append *count* messages, one a second, of which each closes the batch before the last."""
    with open_store(store) as logs, logs.log(LogSpec("weather")).writer() as writer:
        for number in range(first, first + count):
            writer.append([Message(b"%d" % number, "key", "s", number * 10 * SECOND, number * 10 * SECOND)])


def batch(data: Path, *arguments: str) -> CommandResult:
    names = ("--log", "weather", "--output", "weather.batches", "--once", "--no-ticks")
    return run_command("batch", "serve", *names, "--data", str(data), *arguments)


def batched(store: str) -> list[int]:
    """The ids of the messages in the batches of the log store *store*."""
    with open_store(store, read_only=True) as logs:
        bodies = [json.loads(message.body) for part in logs.log(LogSpec("weather.batches")).read() for message in part]
    return sorted(number for body in bodies if "batch" in body for number in body["events"])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "millstream.toml").write_text(SETTINGS)
    return folder


def state(data: Path) -> bytes | None:
    with Node.open(load_settings({"data": str(data)}, environment={})[0]) as node:
        return node.batching.state("weather.batches").read()


def test_the_state_of_the_nodes_log_is_not_used_for_a_log_of_the_same_name_elsewhere(
    data: Path, tmp_path: Path
) -> None:
    own, copy = f"sqlite:///{data}/log.db", f"sqlite:///{tmp_path}/copy.db"
    append(own, 1, 20)
    append(copy, 1, 30)
    assert batch(data).code == 0
    before = state(data)
    for refused in (
        batch(data, "--store", copy),
        run_command("anchor", "feed", "weather", "weather.batches", "--once", "--data", str(data), "--store", copy),
        run_command(
            *("ingest", "mqtt", "mqtt://127.0.0.1:1", "--topic", "#", "--log", "weather"),
            *("--data", str(data), "--store", copy),
        ),
        run_command("pipeline", "batch", "weather", "--hand-over", "new", "--data", str(data), "--store", copy),
        run_command("serve", "--no-broker", "--data", str(data), "--store", copy, environment=SERVED),
    ):
        assert refused.code == 2, refused
        assert f"keeps states of the log 'weather' of the log store log.db, not of {tmp_path}/copy.db" in refused.err
    assert state(data) == before
    assert batch(data, "--store", own).code == 0


SERVED = {"MILLSTREAM_SERVE__BATCHING__WEATHER": "weather.batches", "MILLSTREAM_CONSOLE__ADDRESS": "127.0.0.1:0"}


def test_the_node_and_another_store_do_not_use_the_state_of_a_log_that_store_named(data: Path, tmp_path: Path) -> None:
    stores = [f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second")]
    for number, store in enumerate(stores):
        append(store, 1, 20 + 10 * number)
    assert batch(data, "--store", f"sqlite:///{tmp_path}/mistyped.db").code == 3
    assert batch(data, "--store", stores[0]).code == 0
    refused = batch(data, "--store", stores[1])
    assert refused.code == 2
    assert f"of the log store {tmp_path}/first.db, not of {tmp_path}/second.db" in refused.err
    append(f"sqlite:///{data}/log.db", 1, 20)
    refused = batch(data)
    assert refused.code == 2
    assert f"delete {data}/batching/weather.store" in refused.err
    append(stores[0], 21, 10)
    assert batch(data, "--store", stores[0]).code == 0
    assert batched(stores[0]) == list(range(1, 30))


def test_a_folder_of_the_version_before_goes_on_with_the_store_that_was_always_named(
    data: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/elsewhere.db"
    append(store, 1, 20)
    assert batch(data, "--store", store).code == 0
    for note in (data / "batching").glob("*.store"):
        note.unlink()
    append(store, 21, 10)
    assert batch(data, "--store", store).code == 0
    assert batched(store) == list(range(1, 30))


def test_a_node_that_was_moved_and_one_whose_log_store_was_replaced_go_on(data: Path, tmp_path: Path) -> None:
    append(f"sqlite:///{data}/log.db", 1, 20)
    assert batch(data).code == 0
    moved = tmp_path / "moved"
    shutil.move(data, moved)
    append(f"sqlite:///{moved}/log.db", 21, 10)
    assert batch(moved).code == 0
    shutil.move(moved / "log.db", moved / "other.db")
    (moved / "millstream.toml").write_text(f'{SETTINGS}[log]\nstore = "sqlite:///{moved}/other.db"\n')
    append(f"sqlite:///{moved}/other.db", 31, 10)
    assert batch(moved).code == 0
    assert batched(f"sqlite:///{moved}/other.db") == list(range(1, 40))
