"""A log of batches that lost its end: the lost batches are computed again, or the service says why they cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millstream.batching import BatchConfig, ConfigError, Override, Rulebook
from millstream.batching.batch_log_origin import BatchLogOrigin, write_origin
from millstream.batching.errors import BatchServiceError
from millstream.batching.rule_changes import batched_rules, read_rules
from millstream.batching.service import BatchService
from millstream.batching.service_state import decode_state, read_state
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import Log, LogSpec, LogStore, copy_log, open_store
from support.batched_logs import RULES, expected, given, traffic


@pytest.fixture
def store() -> Iterator[LogStore]:
    with open_store("memory://") as store:
        with store.log(LogSpec("in")).writer() as writer:
            writer.append(traffic(1, 300))
        yield store


def serve(source: Log, output: Log, state: FileDocument) -> None:
    service = BatchService(source, output, RULES, state, commit_every=20)
    service.step()
    service.close()


def older(output: Log, store: LogStore, messages: int, sequence: int) -> Log:
    """A copy of *output* with its first *messages*, which were made from the source up to the message *sequence*."""
    copy = store.log(LogSpec(output.name))
    kept = [msgspec.structs.replace(message, id=0) for batch in output.read() for message in batch][:messages]
    with copy.writer("batching") as writer:
        writer.append(kept, sequence=sequence or None)
    return copy


def counted_end(store: LogStore, state: FileDocument) -> tuple[int, int]:
    """How much of the output there is after the first hundred messages, and its sequence."""
    with open_store("memory://") as early:
        with early.log(LogSpec("in")).writer() as writer:
            writer.append([message for batch in store.log(LogSpec("in")).read(1, 100) for message in batch])
        output = early.log(LogSpec("out"))
        serve(early.log(LogSpec("in")), output, state)
        return output.last_id, output.sequence("batching")


@pytest.mark.parametrize("lost", ["the end", "all"])
def test_p6_batches_that_the_output_lost_are_computed_again(store: LogStore, tmp_path: Path, lost: str) -> None:
    state = FileDocument(tmp_path / "state")
    serve(store.log(LogSpec("in")), store.log(LogSpec("out")), state)
    end = counted_end(store, FileDocument(tmp_path / "early")) if lost == "the end" else (0, 0)
    with open_store("memory://") as restored:
        output = older(store.log(LogSpec("out")), restored, *end)
        serve(store.log(LogSpec("in")), output, state)
        assert given(output) == given(store.log(LogSpec("out"))) == expected(store.log(LogSpec("in")))


def test_p6_batches_that_the_output_lost_are_missed_where_the_source_was_trimmed(
    store: LogStore, tmp_path: Path
) -> None:
    state, source = FileDocument(tmp_path / "state"), store.log(LogSpec("in"))
    serve(source, store.log(LogSpec("out")), state)
    end = counted_end(store, FileDocument(tmp_path / "early"))
    source.trim(50)
    with open_store("memory://") as restored:
        output = older(store.log(LogSpec("out")), restored, *end)
        with pytest.raises(BatchServiceError, match=rf"ends at {end[0]} now: .*begins at message 50.*newer backup"):
            serve(source, output, state)
        output.writer().close()


def test_p6_batches_that_a_job_handed_over_are_not_computed_again_by_a_service(store: LogStore, tmp_path: Path) -> None:
    state, source = FileDocument(tmp_path / "state"), store.log(LogSpec("in"))
    serve(source, store.log(LogSpec("out")), state)
    before = state.read()
    with open_store("memory://") as restored:
        output = older(store.log(LogSpec("out")), restored, *counted_end(store, FileDocument(tmp_path / "early")))
        write_origin(output, BatchLogOrigin("in", 50, 10))
        with pytest.raises(BatchServiceError, match=r"A job batched log 'in' up to message 50 .*newer backup"):
            serve(source, output, state)
    assert state.read() == before


def test_p6_messages_that_the_sequence_does_not_count_are_not_written_again(store: LogStore, tmp_path: Path) -> None:
    state, source = FileDocument(tmp_path / "state"), store.log(LogSpec("in"))
    service = BatchService(source, store.log(LogSpec("out")), RULES, state)
    service.step()
    service._writer.close()  # a crash: the state is of the beginning
    with open_store("memory://") as moved:
        output = older(store.log(LogSpec("out")), moved, 10**6, 0)
        refused = r"'out' has messages 1 to \d+, but does not record from which messages of log 'in'"
        with pytest.raises(BatchServiceError, match=refused):
            serve(source, output, state)
        with pytest.raises(BatchServiceError, match=refused):
            batched_rules(source, output, state)
        state.path.unlink()
        with pytest.raises(BatchServiceError, match=refused):
            serve(source, output, state)


def test_a_copy_without_a_sequence_continues_with_a_state_that_knows_its_end(store: LogStore, tmp_path: Path) -> None:
    state, source = FileDocument(tmp_path / "state"), store.log(LogSpec("in"))
    serve(source, store.log(LogSpec("out")), state)
    with open_store("memory://") as moved:
        output = older(store.log(LogSpec("out")), moved, 10**6, 0)
        with source.writer() as writer:
            writer.append([Message(b"", key, "p", 10**6, 10**6) for key in "ab"])
        serve(source, output, state)
        serve(source, output, state)
        assert given(output) == expected(source)


def test_a_state_of_the_release_before_is_continued_and_records_the_end(store: LogStore, tmp_path: Path) -> None:
    state, source, output = FileDocument(tmp_path / "state"), store.log(LogSpec("in")), store.log(LogSpec("out"))
    serve(source, output, state)
    members = msgspec.msgpack.decode(state.read() or b"")
    del members["end"]
    state.write(msgspec.msgpack.encode(members))
    assert decode_state(state.read() or b"").end is None
    BatchService(source, output, RULES, state)._writer.close()
    kept = read_state(state, "in", "out")
    assert kept is not None
    assert kept.end is not None
    assert (kept.position, kept.end.last_id) == (300, output.last_id)


def test_p6_without_the_state_of_a_job_its_batches_are_not_written_again(store: LogStore, tmp_path: Path) -> None:
    state, source, output = FileDocument(tmp_path / "state"), store.log(LogSpec("in")), store.log(LogSpec("out"))
    write_origin(output, BatchLogOrigin("in", 200, 10))
    with pytest.raises(BatchServiceError, match=r"batched log 'in' up to message 200 .*hand-over and a new output log"):
        serve(source, output, state)
    assert not output.last_id


def test_p6_a_copy_of_the_output_gets_no_batch_a_second_time(store: LogStore, tmp_path: Path) -> None:
    state, source = FileDocument(tmp_path / "state"), store.log(LogSpec("in"))
    service = BatchService(source, store.log(LogSpec("out")), RULES, state)
    service.step()
    service._writer.close()  # a crash: the state is of the beginning
    with open_store("memory://") as moved:
        output = moved.log_to_copy(store.log(LogSpec("out")))
        copy_log(store.log(LogSpec("out")), output)
        serve(source, output, state)
        assert given(output) == expected(source)


OTHERS = {
    "window": BatchConfig(400, 20),
    "limit": BatchConfig(50, 20, max_count=3),
    "override": Rulebook(RULES, (Override(BatchConfig(400, 20), key="a"), Override(BatchConfig(400, 20), key="b"))),
}


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_p6_without_its_state_a_log_is_not_read_again_by_other_rules(
    tmp_path: Path, other: BatchConfig | Rulebook, is_recorded: bool
) -> None:
    state = FileDocument(tmp_path / "state")
    with open_store("memory://") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append([Message(b"%d" % n, "ab"[n % 2] + str(n // 2), "p", 10 * n, 10 * n + 1) for n in range(60)])
            if isinstance(other, Rulebook):
                writer.append([Message(b"1", "a", "p", 10**4, 10**4), Message(b"2", "c", "p", 10**5, 10**5)])
        serve(source, output, state)
        before = given(output)
        state.path.unlink()
        if not is_recorded:
            output.put_metadata("batching/rules", b"")  # an earlier release recorded only changed rules
        with pytest.raises((ConfigError, BatchServiceError), match=r"the settings have the batching rules .*'out' "):
            BatchService(source, output, other, state)
        assert not state.path.exists()
        serve(source, output, state)
        assert given(output) == before


def test_an_output_without_batches_takes_other_rules(tmp_path: Path) -> None:
    state = FileDocument(tmp_path / "state")
    with open_store("memory://") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        for rules in (BatchConfig(400, 20), RULES):
            BatchService(source, output, rules, state).close()
            recorded = read_rules(output)
            assert recorded is not None
            assert recorded.default == rules
