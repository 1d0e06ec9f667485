"""The states of a log in a bucket are found without a listing, which may be stale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.probe import RECORD
from millstream.log.errors import DamagedLogError
from millstream.testing.log_backends import NAME
from support.interposed_bucket import InterposedBucket, RecordingBucket

NAMES = LogNames(NAME)


class BlindBucket(RecordingBucket):
    """Its listings show nothing yet."""

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        return []


def opened(bucket: RecordingBucket | InterposedBucket) -> ObjectsBackend:
    return ObjectsBackend(bucket, VirtualClock())


@pytest.fixture
def bucket() -> RecordingBucket:
    return made(RecordingBucket())


def made(bucket: RecordingBucket) -> RecordingBucket:
    bucket.put(RECORD, b"{}")
    opened(bucket).create(NAME)
    return bucket


def test_a_stale_listing_hides_no_state() -> None:
    bucket = made(BlindBucket())
    first = opened(bucket)
    for number in range(5):
        assert first.put_state(NAME, f"consumer/{number}", b"%d" % number, version=0)
    assert first.put_state(NAME, "other", b"x", version=0)
    for backend in (first, opened(bucket)):
        assert list(backend.states(NAME, "consumer/")) == ["0", "1", "2", "3", "4"]


def test_a_new_state_of_another_process_is_seen(bucket: RecordingBucket) -> None:
    first, second = opened(bucket), opened(bucket)
    assert first.put_state(NAME, "a/1", b"x", version=0)
    assert list(second.states(NAME, "a/")) == ["1"]
    assert first.put_state(NAME, "a/2", b"x", version=0)
    assert list(second.states(NAME, "a/")) == ["1", "2"]


def test_a_key_is_listed_once_however_often_its_state_is_written(bucket: RecordingBucket) -> None:
    backend = opened(bucket)
    for version in range(4):
        assert backend.put_state(NAME, "a", b"x", version=version)
    assert len(bucket.list(NAMES.state_keys)) == 1


def test_a_key_without_a_version_is_no_state(bucket: RecordingBucket) -> None:
    bucket.create(NAMES.state_key(1), b'{"key":"a","nonce":""}')
    assert not opened(bucket).states(NAME, "a")
    assert opened(bucket).put_state(NAME, "a", b"x", version=0)
    assert len(bucket.list(NAMES.state_keys)) == 1


@pytest.mark.parametrize("loses", [False, True], ids=["sleeps", "late"])
@pytest.mark.parametrize("key", ["mine", "theirs"])
def test_keys_that_are_added_at_the_same_time_are_all_there(key: str, loses: bool) -> None:
    for at in range(20):
        bucket = made(RecordingBucket())
        slow, others = InterposedBucket(bucket), opened(bucket)
        backend = opened(slow)
        slow.begin(at, lambda: others.put_state(NAME, "theirs", b"x", version=0), loses=loses)  # noqa: B023 - this turn's
        written = backend.put_state(NAME, key, b"y", version=0)
        assert written or key == "theirs"
        assert list(opened(bucket).states(NAME, "")) == sorted(
            {"kind", key} | ({"theirs"} if slow.requests > at else set())
        )
        if slow.requests <= at:
            return
    raise AssertionError("too many requests")


def test_many_keys_are_read_side_by_side_at_first_and_not_again(bucket: RecordingBucket) -> None:
    backend = opened(bucket)
    for number in range(30):
        assert backend.put_state(NAME, f"a/{number:02}", b"x", version=0)
    fresh = opened(bucket)
    assert len(fresh.states(NAME, "a/")) == 30
    before = bucket.requests["get"]
    assert not fresh.states(NAME, "b/")
    assert bucket.requests["get"] - before == 1


def test_a_damaged_key_is_named(bucket: RecordingBucket) -> None:
    bucket.create(NAMES.state_key(1), b"{")
    with pytest.raises(DamagedLogError, match=NAMES.state_key(1)):
        opened(bucket).states(NAME, "")


def test_a_consumer_is_waited_for_before_any_listing_shows_it() -> None:
    bucket = made(BlindBucket())
    clock = VirtualClock()
    with LogStore(opened(bucket), clock) as keeps, LogStore(opened(bucket), clock) as reads:
        log = keeps.log(LogSpec(NAME))
        with log.writer() as writer:
            writer.append([Message(b"one"), Message(b"two")])
        reads.log(LogSpec(NAME)).set_pointer("slow", 0)
        assert log.info().consumers == {"slow": 0}
