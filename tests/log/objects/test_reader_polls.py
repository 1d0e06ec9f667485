"""How often readers of logs in buckets ask for more: each time costs requests."""

from __future__ import annotations

import itertools

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.commit_chain import PEEKS
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


def test_a_commit_is_a_put_and_a_get_and_a_look_at_the_end_four_gets() -> None:
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
            assert bucket.requests == {"get": 4}


def test_a_follower_at_rest_takes_one_get_a_look_and_a_whole_look_now_and_then() -> None:
    bucket, clock = RecordingBucket(), VirtualClock()
    bucket.put(RECORD, b"{}")
    stores = [LogStore(ObjectsBackend(bucket, clock), clock) for _ in range(2)]
    with stores[0], stores[1], stores[0].log(LogSpec("a")).writer() as writer:
        writer.append([Message(b"one")])
        backend = stores[1].log(LogSpec("a"))._backend
        assert backend.extent("a").last_id == 1
        bucket.requests.clear()
        looks = [backend.is_at_end("a", 1) for _ in range(2 * PEEKS)]
        assert (looks.count(False), bucket.requests) == (2, {"get": 2 * PEEKS - 2})
        writer.append([Message(b"two")])
        bucket.requests.clear()
        assert not backend.is_at_end("a", 1)
        assert backend.extent("a").last_id == 2
        assert bucket.requests == {"get": 5}
        assert not backend.is_at_end("a", 1)
        assert bucket.requests == {"get": 5}


def test_a_follower_that_was_overtaken_by_a_trim_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, clock = RecordingBucket(), VirtualClock()
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store, LogStore(ObjectsBackend(bucket, clock), clock) as two:
        log = store.log(LogSpec("a"))
        with log.writer() as writer:
            writer.append([Message(b"one")])
        found = two.log(LogSpec("a")).follow()
        assert next(found).last_id == 1
        with log.writer() as writer:
            for _ in range(5):
                writer.append([Message(b"more")])
        log.trim(6)
        monkeypatch.setattr(two.log(LogSpec("a"))._context.tail, "wait", lambda turn, seconds: None)
        gap, rest = next(found), next(found)
        assert (gap.first_id, gap.last_id, rest.first_id) == (2, 5, 6)
