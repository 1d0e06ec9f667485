"""Whether a log exists is no question for a listing, which may be stale."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.testing.object_bucket import MemoryBucket


class BlindBucket(MemoryBucket):
    """Lists nothing."""

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        return []


def test_a_log_that_no_listing_shows_is_there() -> None:
    bucket, clock = BlindBucket(), VirtualClock()
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store, store.log(LogSpec("weather")).writer() as writer:
        for _ in range(20):
            writer.append([b"x"])
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        assert list(store.logs()) == []
        assert (store.has("weather"), store.has("flights")) == (True, False)
        assert store.log(LogSpec("weather"), create=False).last_id == 20
