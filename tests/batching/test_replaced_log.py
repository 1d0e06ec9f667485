"""A batch service with a state that starts on another log than before, and restarts that are none of that."""

from __future__ import annotations

import pytest

from millstream.batching.errors import BatchServiceError
from millstream.batching.service import BatchService
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, StorageError, Tiering, open_store
from millstream.stores import StoreError
from support.batched_logs import RULES, expected, given, traffic
from support.tiered_logs import URL, Cloud


@pytest.fixture
def store():
    with open_store("memory://") as store:
        yield store


def served(source, output, state):
    """Batch what is in *source*, as a service that ends then."""
    service = BatchService(source, output, RULES, state)
    service.step()
    service.close()


def test_p6_with_its_state_an_output_takes_no_batches_of_a_log_that_was_made_anew(store, tmp_path):
    state, output = FileDocument(tmp_path / "state"), store.log(LogSpec("out"))
    with store.log(LogSpec("in")).writer() as writer:
        writer.append(traffic(1, 300))
    served(store.log(LogSpec("in")), output, state)
    before = given(output), state.read()
    with open_store("memory://") as other:
        with other.log(LogSpec("in")).writer() as writer:
            writer.append(traffic(2, 400))
        with pytest.raises(BatchServiceError, match="'out' has batches of a log other than 'in', or of an earlier log"):
            served(other.log(LogSpec("in")), output, state)
    assert (given(output), state.read()) == before
    served(store.log(LogSpec("in")), output, state)
    assert given(output) == expected(store.log(LogSpec("in")))


def test_p6_a_log_that_ends_before_the_state_is_refused(store, tmp_path):
    """No batch says so, as none had come out; the messages that follow would never be batched."""
    messages, state = [Message(b"1", key, "pump", 110, 120) for key in "abc"], FileDocument(tmp_path / "state")
    with store.log(LogSpec("in")).writer() as writer:
        writer.append(messages)
    served(store.log(LogSpec("in")), store.log(LogSpec("out")), state)
    with open_store("memory://") as restored:
        source, output = restored.log(LogSpec("in")), restored.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append(messages[:1])
        with pytest.raises(BatchServiceError, match=r"is at message 3 of log 'in', but this log now ends at 1.*delete"):
            served(source, output, state)
        state.path.unlink()
        served(source, output, state)


def test_a_restart_is_not_refused_where_messages_were_trimmed(store, tmp_path):
    state, source, output = FileDocument(tmp_path / "state"), store.log(LogSpec("in")), store.log(LogSpec("out"))
    served(source, output, state)
    served(source, output, state)
    with source.writer() as writer:
        writer.append(traffic(8, 300))
    served(source, output, state)
    for trimmed in (source, output):
        trimmed.trim(trimmed.last_id - 2)
        served(source, output, state)
        trimmed.trim(trimmed.last_id + 1)
        served(source, output, state)


def test_a_restart_needs_no_older_messages_from_a_tier_that_cannot_be_reached(tmp_path):
    class Down:
        url = URL

        def __getattr__(self, name):
            raise StoreError("unplugged")

    cloud, state = Cloud(), FileDocument(tmp_path / "state")
    with open_store("memory://", open_objects=cloud.open) as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append(traffic(9, 300))
            served(source, output, state)
            output.set_tiering(Tiering(URL, segment_bytes=1))
            assert output.move_blocks(partial=True).objects
            cloud.store = Down()
            served(source, output, state)
            state.path.unlink()
            with pytest.raises(StorageError, match="unplugged"):
                served(source, output, state)
            cloud.store = cloud.real
            writer.append(traffic(9, 400)[300:])
            served(source, output, state)
        assert given(output) == expected(source)
