"""Creating an object so that its outcome is known, on a network that loses requests and answers."""

from __future__ import annotations

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.errors import StorageUnavailableError

CREATE_RETRIES = RetryPolicy(attempts=6, first=0.1, longest=5.0, within=30.0)
"""How a create without an answer is retried: for three seconds where requests fail at once, else for half a minute."""


def create_object(bucket: Bucket, name: str, data: bytes, clock: Clock) -> bool:
    """Create the object *name*; False where it is another's. Without an answer, what is there decides.

    An object is one's own only if all of its bytes are: *data* contains a nonce. Where the name is taken and then gone,
    it was deleted meanwhile, and is not created again. Raises
    :class:`~millstream.log.errors.StorageUnavailableError`: the object may be created, now or later.
    """
    return CREATE_RETRIES.call(lambda: _try(bucket, name, data), clock)


def _try(bucket: Bucket, name: str, data: bytes) -> bool:
    try:
        if bucket.create(name, data):
            return True
    except StorageUnavailableError:
        there = bucket.get(name)
        if there is None:
            raise
        return there == data
    return bucket.get(name) == data
