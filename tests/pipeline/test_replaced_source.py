"""A stream with a state that is newer than its log, as after a restore of an older backup of the log, or damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.batching import BatchConfig, Batcher, Rulebook
from millstream.batching.errors import SnapshotError
from millstream.batching.output_end import OutputEnd, end_of
from millstream.batching.service_state import ServiceState, read_state, write_state
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import Log, LogSpec, open_store
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.batch_stream import StreamPlan, _check_source, _first_id, _record_end

RULES = Rulebook(BatchConfig(50, 20))


@pytest.fixture
def logs() -> Iterator[tuple[Log, Log]]:
    """The log ``in`` with one message, and the log ``out``."""
    with open_store("memory://") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out", kind="batches"))
        with source.writer() as writer:
            writer.append([Message(b"1", "a", "pump", 110, 120)])
        yield source, output


def plan_of(folder: Path) -> StreamPlan:
    return StreamPlan(store_url="memory://", log="in", output="out", rules=RULES, state=folder / "out.state")


def begin(plan: StreamPlan, logs: tuple[Log, Log]) -> int:
    """The id that the query of *plan* begins with, or began with."""
    source, output = logs
    with output.writer("batching") as writer:
        _check_source(plan, source, output, writer)
        return _first_id(plan, source, end_of(writer))


def complete_trigger(plan: StreamPlan, last_id: int, received_at: int | None = None) -> None:
    """Write a checkpoint of *plan* as Spark does, with one trigger, which ended at *last_id*."""
    offset = {"id": last_id} if received_at is None else {"id": last_id, "received_at": received_at}
    for name, text in (("offsets", "v1\n{}\n" + json.dumps(offset)), ("commits", "v1\n{}")):
        (plan.checkpoint / name).mkdir()
        (plan.checkpoint / name / "0").write_text(text)


def test_a_stream_whose_state_is_beyond_the_end_of_its_log_names_the_state(
    tmp_path: Path, logs: tuple[Log, Log]
) -> None:
    plan = plan_of(tmp_path)
    for position in (1, 2):
        write_state(FileDocument(plan.state), ServiceState("in", "out", position, Batcher.of(RULES).snapshot()))
        if position == 1:
            assert begin(plan, logs) == 2
    expected = r"the state .*out\.state .* is at message 2 of log 'in', but this log now ends at 1: .*delete"
    with pytest.raises(PipelineInputError, match=expected):
        begin(plan, logs)
    plan.state.unlink()
    assert begin(plan, logs) == 1, "the log is replayed"


def test_a_stream_whose_state_is_damaged_continues_from_its_checkpoint(tmp_path: Path, logs: tuple[Log, Log]) -> None:
    plan = plan_of(tmp_path)
    assert begin(plan, logs) == 1
    plan.state.write_bytes(b"{")
    with pytest.raises(SnapshotError, match="delete this state to replay the log"):
        begin(plan, logs)
    complete_trigger(plan, 1)
    assert begin(plan, logs) == 1 and plan.checkpoint.exists()


def test_a_stream_whose_checkpoint_is_beyond_the_end_of_its_log_names_the_checkpoint(
    tmp_path: Path, logs: tuple[Log, Log]
) -> None:
    plan = plan_of(tmp_path)
    begin(plan, logs)
    complete_trigger(plan, 2)
    expected = r"the checkpoint .*out\.checkpoint is at message 2 of log 'in', but this log now ends at 1: .*Delete"
    with pytest.raises(PipelineInputError, match=expected):
        begin(plan, logs)


@pytest.mark.parametrize("received_at", [None, 120, 121])
def test_p6_a_stream_whose_log_lost_messages_and_has_others_by_their_ids_names_the_checkpoint(
    tmp_path: Path, logs: tuple[Log, Log], received_at: int | None
) -> None:
    plan = plan_of(tmp_path)
    begin(plan, logs)
    complete_trigger(plan, 1, received_at)
    if received_at != 121:
        assert begin(plan, logs) == 1
        return
    expected = r"the checkpoint .*out\.checkpoint is at message 1 of log 'in', but another message has this id now"
    with pytest.raises(PipelineInputError, match=expected):
        begin(plan, logs)


@pytest.mark.parametrize("recorded_by", ["state", "checkpoint"])
def test_p6_a_stream_whose_output_lost_batches_reads_its_log_again(
    tmp_path: Path, logs: tuple[Log, Log], recorded_by: str
) -> None:
    plan, (source, output) = plan_of(tmp_path), logs
    assert begin(plan, logs) == 1
    complete_trigger(plan, 1)
    if recorded_by == "state":
        end = OutputEnd(3, 1)
        write_state(FileDocument(plan.state), ServiceState("in", "out", 1, Batcher.of(RULES).snapshot(), end))
    else:
        with output.writer("batching") as writer:
            writer.append([Message(b"{}")], sequence=1)
            _record_end(plan, writer)
    with open_store("memory://") as restored:
        assert begin(plan, (source, restored.log(LogSpec("out", kind="batches")))) == 1
    assert not (plan.checkpoint / "commits").exists()
    kept = read_state(FileDocument(plan.state), "in", "out")
    assert kept is not None
    assert kept.position == 0
