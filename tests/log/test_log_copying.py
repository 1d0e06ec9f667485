"""A log is copied between any two stores, resumed where it stopped, and compared with what it was copied from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import (
    Batch,
    DamagedLogError,
    Log,
    LogInputError,
    LogSpec,
    LogStore,
    Message,
    Retention,
    Writer,
    WriterBusyError,
    copy_log,
    open_store,
)

SPEC = LogSpec("weather", block_messages=50)
KINDS = ("sqlite", "segments", "memory")

Open = Callable[[str, str], LogStore]


@pytest.fixture
def open_kind(tmp_path: Path) -> Iterator[Open]:
    """Opens a store of a kind under a name."""
    stores: list[LogStore] = []

    def open_one(kind: str, name: str) -> LogStore:
        stores.append(open_store("memory://" if kind == "memory" else f"{kind}:///{tmp_path / name}"))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def server_url(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The URL of a database without a log, of a kind of server."""
    names = {"mysql": "database", "postgresql": "postgres_database"}
    return lambda kind: request.getfixturevalue(names[kind])


def fill(log: Log, count: int = 330) -> Log:
    """Messages with every member, appended in several forms and times."""
    with log.writer() as writer:
        for start in range(log.last_id, count, 110):
            writer.append(
                [
                    Message(
                        b"\x00%d" % n,
                        f"k{n % 3}",
                        "ü",
                        n * 1000,
                        n * 2000 if n % 2 else None,
                        (("a", b"\xff"),) * (n % 3),
                    )
                    for n in range(start, min(start + 110, count))
                ]
            )
    return log


def messages(log: Log) -> list[Message]:
    return [message for batch in log.read() for message in batch]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, KINDS)))
def test_a_copy_has_the_same_messages_under_the_same_ids(open_kind: Open, source: str, target: str) -> None:
    log, copy = fill(open_kind(source, "from").log(SPEC)), open_kind(target, "to").log(SPEC)
    done = copy_log(log, copy)
    assert (done.first_id, done.last_id, done.messages) == (1, 330, 330)
    assert messages(copy) == messages(log)
    assert copy.verify().ok
    assert copy_log(log, copy).messages == 0
    fill(log, 400)
    assert copy_log(log, copy).messages == 70
    assert messages(copy) == messages(log)


def test_a_copy_of_a_log_of_batches_has_their_rules_and_origin(open_kind: Open) -> None:
    log, copy = fill(open_kind("sqlite", "from").log(SPEC)), open_kind("segments", "to").log(SPEC)
    copy_log(log, copy)
    assert copy.metadata("batching/rules") == b""
    log.put_metadata("batching/rules", b"rules")  # changed after the first run of the copy
    log.put_metadata("batching/origin", b"origin")
    copy_log(log, copy)
    assert (copy.metadata("batching/rules"), copy.metadata("batching/origin")) == (b"rules", b"origin")
    copy.put_metadata("batching/rules", b"newer")  # the log was moved, and its rules were changed there
    copy_log(log, copy)
    assert copy.metadata("batching/rules") == b"newer"


def test_a_copy_has_the_rule_for_trimming_and_what_a_ledger_knows_to_be_no_entry(open_kind: Open) -> None:
    log, copy = fill(open_kind("sqlite", "from").log(SPEC)), open_kind("segments", "to").log(SPEC)
    log.put_metadata("ledger/aside", b"[[1,2]]")
    log.set_retention(Retention(max_count=1000))
    copy_log(log, copy)
    assert (copy.metadata("ledger/aside"), copy.retention) == (b"[[1,2]]", Retention(max_count=1000))
    copy.set_retention(Retention(max_count=500))
    fill(log, 400)
    copy_log(log, copy)
    assert copy.retention == Retention(max_count=500)


def test_a_copy_that_is_interrupted_has_the_rules_of_its_last_batches(
    open_kind: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = fill(open_kind("sqlite", "from").log(SPEC)), open_kind("segments", "to").log(SPEC)
    log.put_metadata("batching/rules", b"rules")
    copy_log(log, copy)
    log.put_metadata("batching/rules", b"rules, more rules")
    fill(log, 400)

    def killed(_target: Log, batch: Batch) -> bool:
        if batch.last_id == 400:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("millstream.log.upkeep.copying._same", killed)
        copy_log(log, copy)
    assert copy.last_id == 400
    assert copy.metadata("batching/rules") == b"rules, more rules"


@pytest.mark.parametrize("target", KINDS)
def test_a_copy_of_a_log_of_batches_knows_from_which_messages_they_were_made(open_kind: Open, target: str) -> None:
    log, copy = open_kind("sqlite", "from").log(SPEC), open_kind(target, "to").log(SPEC)
    for sequence in (7, 900):
        with log.writer("batching") as writer:
            writer.append([Message(b"batch")] * 130, sequence=sequence)
        for _ in range(2):
            copy_log(log, copy)
            assert (copy.last_id, copy.sequence("batching")) == (log.last_id, sequence)
    assert copy.verify().ok


def test_a_copy_drops_nothing_of_producers_that_count_anew(open_kind: Open) -> None:
    log, copy = open_kind("sqlite", "from").log(SPEC), open_kind("segments", "to").log(SPEC)
    with log.writer("importer") as writer:
        writer.append([b"1"], sequence=5)
    copy_log(log, copy)
    with copy.writer("importer") as writer:
        assert writer.append([b"2"], sequence=1) is not None


@pytest.mark.parametrize("server", ["mysql", "postgresql"])
def test_a_log_goes_to_a_server_and_back_by_the_command_and_is_the_same(
    server_url: Callable[[str], str], server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there, back = f"sqlite:///{tmp_path / 'a.db'}", server_url(server), f"segments:///{tmp_path / 'b'}"
    with open_store(here) as store:
        log = fill(store.log(SPEC))
        with log.reader("kitchen") as reader:
            reader.ack(range(1, 43))
        log.trim(60)
        before = messages(log)
    for source, target in ((here, there), (there, back)):
        assert run(["log", "copy", source, target, "weather", "--consumers"]) == 0, capfd.readouterr().err
        assert run(["log", "copy", source, target, "weather"]) == 0
    assert there.partition("//")[2].partition("@")[0] not in capfd.readouterr().out
    for url in (there, back):
        with open_store(url) as store:
            copy = store.log(SPEC, create=False)
            assert (copy.first_id, copy.last_id, copy.pointer("kitchen")) == (60, 330, 42)
            assert messages(copy) == before
            assert copy.verify().ok
            assert fill(copy, 400).last_id == 400


@pytest.mark.parametrize("target", KINDS)
def test_a_copy_that_was_interrupted_is_gone_on_with(
    open_kind: Open, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_kind("sqlite", "from").log(LogSpec("weather", block_messages=8000))
    with log.writer("batching") as writer:
        for turn in range(3):
            writer.append([b"%d" % turn] * 5000, sequence=turn + 1)
    copy = open_kind(target, "to").log(SPEC)
    append = Writer.append
    calls = []

    def interrupted(self: Writer, *arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return append(self, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "append", interrupted)
        copy_log(log, copy)
    assert (copy.last_id, copy.sequence("batching")) == (10_000, 0), "nothing is counted that the copy lacks"
    assert (copy_log(log, copy).first_id, copy.sequence("batching")) == (10_001, 3)
    assert messages(copy) == messages(log)


def test_a_copy_is_not_made_into_another_log(open_kind: Open) -> None:
    log, copy = fill(open_kind("memory", "").log(SPEC)), open_kind("memory", "").log(SPEC)
    with copy.writer() as writer:
        writer.append([b"something else"])
    with pytest.raises(LogInputError, match="differs from the beginning of the source log"):
        copy_log(log, copy)
    longer = fill(open_kind("memory", "").log(SPEC), 500)
    with pytest.raises(LogInputError, match="differs from the beginning"):
        copy_log(log, longer)
    assert copy.last_id == 1


def test_a_copy_that_does_not_give_back_what_was_written_is_told(
    open_kind: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = fill(open_kind("memory", "").log(SPEC)), open_kind("memory", "").log(SPEC)
    append = Writer.append

    def careless(self: Writer, *_: object, **__: object) -> object:
        return append(self, [b"another"] * 330)

    monkeypatch.setattr(Writer, "append", careless)
    with pytest.raises(DamagedLogError, match="differ from what was written"):
        copy_log(log, copy)


def test_nobody_writes_to_a_copy_while_it_is_made(open_kind: Open) -> None:
    log, copy = fill(open_kind("memory", "").log(SPEC)), open_kind("memory", "").log(SPEC)
    with copy.writer(), pytest.raises(WriterBusyError):
        copy_log(log, copy)
