"""What waits for a commit: ids in order, room for so many bytes, and the share that one commit takes."""

from __future__ import annotations

import pytest

from millstream.log import MAX_ID, IdRange, LogInputError, LogSpec
from millstream.log.writing.append_request import AppendRequest, make_request
from millstream.log.writing.pending_requests import COMMIT_BYTES, PENDING_BYTES, PendingRequests


def pending_of(*requests: AppendRequest, last_id: int = 0) -> PendingRequests:
    pending = PendingRequests(LogSpec("weather"), last_id=last_id, sequence=0)
    for request in requests:
        pending.add(request, 0.0)
    return pending


def sized(size: int, count: int = 1, sequence: int | None = None) -> AppendRequest:
    """A request that says that it has *count* messages of *size* bytes in all."""
    return AppendRequest(make_request([b"x"] * count).content, count, size, sequence)


def test_ids_follow_one_another_and_empty_requests_take_none() -> None:
    pending = pending_of(last_id=10)
    assert pending.add(sized(1, 3), 0.0) == IdRange(11, 13)
    assert pending.add(make_request([]), 0.0) == IdRange(14, 13)
    assert pending.add(sized(1, 1), 0.0) == IdRange(14, 14)
    assert (len(pending.requests), pending.messages, pending.bytes) == (2, 4, 2)


def test_a_sequence_that_was_given_before_gets_no_ids() -> None:
    pending = pending_of(sized(1, sequence=5))
    assert pending.add(sized(1, sequence=5), 0.0) is None
    assert pending.add(sized(1, sequence=4), 0.0) is None
    assert pending.add(sized(1, sequence=6), 0.0) == IdRange(2, 2)
    assert len(pending.requests) == 2


def test_the_last_id_may_be_given_and_none_after_it() -> None:
    pending = pending_of(last_id=MAX_ID - 1)
    with pytest.raises(LogInputError, match=f"no id after {MAX_ID - 1}"):
        pending.add(sized(1, 2), 0.0)
    assert pending.add(sized(1, 1), 0.0) == IdRange(MAX_ID, MAX_ID)


def test_there_is_room_up_to_the_limit_and_for_a_single_request_of_any_size() -> None:
    pending = pending_of()
    assert pending.has_room(sized(2 * PENDING_BYTES))
    pending.add(sized(PENDING_BYTES - 10), 0.0)
    assert pending.has_room(sized(10))
    assert not pending.has_room(sized(11))


def test_a_commit_takes_about_its_bytes_and_at_least_one_request() -> None:
    pending = pending_of(sized(COMMIT_BYTES + 1), sized(COMMIT_BYTES), sized(1), sized(1))
    pending.unattended = True
    assert [request.size for request in pending.take(10**9)] == [COMMIT_BYTES + 1]
    assert [request.size for request in pending.take(10**9)] == [COMMIT_BYTES]
    assert pending.unattended
    assert [request.size for request in pending.take(10**9)] == [1, 1]
    assert (pending.take(10**9), pending.bytes, pending.messages, pending.unattended) == ([], 0, 0, False)


def test_a_commit_takes_no_further_request_once_it_has_so_many_messages() -> None:
    pending = pending_of(sized(1, 60), sized(1, 60), sized(1, 60))
    assert [request.count for request in pending.take(100)] == [60, 60]
    assert [request.count for request in pending.take(100)] == [60]


def test_waiting_begins_with_the_first_request() -> None:
    pending = pending_of()
    pending.add(sized(1), 5.0)
    pending.add(sized(1), 6.0)
    assert pending.since == 5.0


def test_a_full_block_of_bytes_or_of_messages_is_full() -> None:
    spec = LogSpec("weather")
    assert not pending_of(sized(spec.block_bytes - 1, spec.block_messages - 1)).is_full()
    assert pending_of(sized(spec.block_bytes)).is_full()
    assert pending_of(sized(1, spec.block_messages)).is_full()


def test_what_is_dropped_keeps_the_ids_that_were_given() -> None:
    pending = pending_of(sized(5, 3))
    pending.clear()
    assert (len(pending.requests), pending.bytes, pending.messages, pending.last_id) == (0, 0, 0, 3)
