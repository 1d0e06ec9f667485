"""How often readers of logs in buckets ask for more: each time costs requests."""

from __future__ import annotations

import itertools

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.log.reading.reader import PollPauses
from support.interposed_bucket import RecordingBucket


@pytest.mark.parametrize(
    ("min_linger", "expected"),
    [(0.0, [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]), (0.1, [0.1, 0.2, 0.4, 0.5, 0.5, 0.5])],
)
def test_a_follower_looks_as_rarely_as_writers_commit_and_less_often_at_rest(
    min_linger: float, expected: list[float]
) -> None:
    pauses = PollPauses(min_linger)
    assert [pauses.next() for _ in expected] == expected


@pytest.mark.parametrize("reads", ["reader", "follow"])
def test_a_follower_of_a_log_in_a_bucket_rests_for_half_a_second(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, clock = RecordingBucket(), VirtualClock()
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, clock), clock, min_linger=0.1) as store:
        log = store.log(LogSpec("a"))
        with LogStore(ObjectsBackend(bucket, clock), clock) as others, others.log(LogSpec("a")).writer() as writer:
            writer.append([Message(b"one")])
        waited: list[float] = []

        def wait(turn: int, seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 6:
                raise KeyboardInterrupt

        monkeypatch.setattr(log._context.tail, "wait", wait)
        batches = log.reader("me").batches(follow=True) if reads == "reader" else log.follow()
        with pytest.raises(KeyboardInterrupt):
            list(itertools.islice(batches, 10))
    assert waited == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


def test_a_commit_is_a_put_and_a_get_and_a_look_at_the_end_six_gets() -> None:
    bucket, clock = RecordingBucket(), VirtualClock()
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        log = store.log(LogSpec("a"))
        with log.writer() as writer:
            writer.append([Message(b"one")])
            bucket.requests.clear()
            writer.append([Message(b"two")])
            assert bucket.requests == {"create": 1, "get": 1}
            bucket.requests.clear()
            assert log.last_id == 2
            assert bucket.requests == {"get": 6}
