"""A stream with a state that is newer than its log, as after a restore of an older backup of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.batching import BatchConfig, Batcher, Rulebook
from millstream.batching.service_state import ServiceState, write_state
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.batch_stream import StreamPlan, _check_source


def test_a_stream_whose_state_is_beyond_the_end_of_its_log_names_the_state(tmp_path: Path) -> None:
    rules = Rulebook(BatchConfig(50, 20))
    plan = StreamPlan(store_url="memory://", log="in", output="out", rules=rules, state=tmp_path / "out.state")
    with open_store("memory://") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out", kind="batches"))
        with source.writer() as writer:
            writer.append([Message(b"1", "a", "pump", 110, 120)])
        with output.writer("batching") as writer:
            for position in (1, 2):
                state = ServiceState("in", "out", position, Batcher.of(rules).snapshot())
                write_state(FileDocument(plan.state), state)
                if position == 1:
                    _check_source(plan, source, output, writer)
            expected = r"the state .*out\.state .* is at message 2 of log 'in', but this log now ends at 1: .*delete"
            with pytest.raises(PipelineInputError, match=expected):
                _check_source(plan, source, output, writer)
