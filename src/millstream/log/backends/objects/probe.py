"""Whether a bucket can hold logs: of many who create one name at the same time, exactly one may win.

Services that ignore the condition of a PUT look like others until two writers meet. So the first writer of a bucket
tries it out and leaves the result as :data:`RECORD`; readers never do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import msgspec

from millstream.core.amounts import counted
from millstream.core.decoding import prepared
from millstream.log.backends.objects.bucket import Bucket, UnknownOutcomeError
from millstream.log.errors import StorageError, StorageUnavailableError

RECORD = "bucket.json"
"""The name of the object with the result, beside the logs."""

CREATORS = (50, *[8] * 8)
"""How many create each name, one name after the other.

Swift, which looks whether a name exists before it stores an object, let two win of 8 in 67 of 80 attempts, and of 50 in
31 of 40: one attempt alone would pass it too often.
"""

_ATTEMPTS = 5
_URLS = 15  # others that are remembered: members may reach one bucket by several
_PLACES = "probes/"
_REMEDY = (
    "Use a service with create-only PUTs (If-None-Match: *) and strong consistency, such as Amazon S3, Ceph or MinIO; "
    "or use a log store of another kind, such as mysql:// or postgresql://"
)


class UnfitBucketError(StorageError):
    """The bucket does not keep what logs rely on."""


class ProbeRecord(msgspec.Struct, frozen=True):
    """The result of the probe: of *creators* of each name one succeeded at *time* (microseconds since the epoch,
    server's clock), at each of *urls*. A record of an earlier release has none, and holds anywhere."""

    version: int
    creators: tuple[int, ...]
    time: int
    urls: tuple[str, ...] = ()


def check_bucket(bucket: Bucket) -> None:
    """Let a writer use *bucket*: probe it unless that was done before at its URL. Raises :class:`UnfitBucketError`.

    A bucket that was copied to another service has the record of the first one.
    """
    data = bucket.get(RECORD)
    if data is None or ((urls := _probed_urls(data)) and _service_url(bucket) not in urls):
        probe_bucket(bucket)


def _service_url(bucket: Bucket) -> str:
    """The URL of *bucket* without how this process gets there, such as ``profile``: it is stored in the bucket."""
    parts = urlsplit(bucket.url)
    options = [option for option in parts.query.split("&") if option.startswith("endpoint=")]
    return urlunsplit(parts._replace(query="&".join(options)))


def _probed_urls(data: bytes) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(data, type=prepared(ProbeRecord)).urls
    except msgspec.DecodeError:
        return ()


def probe_bucket(bucket: Bucket, creators: Sequence[int] = CREATORS) -> ProbeRecord:
    """Let as many threads as *creators* says create each name at the same time, and record that one of them won.

    Raises :class:`UnfitBucketError`, and removes the record, where it is otherwise.
    """
    place = f"{_PLACES}{os.urandom(16).hex()}"
    names = [f"{place}/{number}" for number in range(len(creators))]
    try:
        with ThreadPoolExecutor(max(creators)) as pool:
            for name, count in zip(names, creators, strict=True):
                _compete(bucket, name, count, pool)
    except UnfitBucketError:
        bucket.delete([*names, RECORD])
        raise
    this = _service_url(bucket)
    known = [url for url in _probed_urls(bucket.get(RECORD) or b"") if url != this]
    record = ProbeRecord(1, tuple(creators), bucket.server_time(), (*known[-_URLS:], this))
    bucket.put(RECORD, msgspec.json.encode(record))
    bucket.delete(names)
    return record


def _compete(bucket: Bucket, name: str, count: int, pool: ThreadPoolExecutor) -> None:
    """Let *count* threads create *name*, and judge who was told what. Raises :class:`UnfitBucketError`."""
    bodies = [b"%d %s" % (number, os.urandom(16).hex().encode()) for number in range(count)]
    start = threading.Barrier(count)

    def create(body: bytes) -> bool | None:
        start.wait()
        return _create(bucket, name, body)

    _judge(bucket, name, bodies, list(pool.map(create, bodies)))
    if _create(bucket, name, b"late"):
        raise UnfitBucketError(
            f"{bucket.url} overwrote an existing object although the PUT was conditional (If-None-Match: *). {_REMEDY}"
        )


def _create(bucket: Bucket, name: str, body: bytes) -> bool | None:
    """Whether *body* was created; None if no answer shows it."""
    unsure = False
    for _ in range(_ATTEMPTS):
        try:
            if bucket.create(name, body):
                return True
        except UnknownOutcomeError:
            unsure = True
        else:
            return None if unsure else False
    return None


def _judge(bucket: Bucket, name: str, bodies: Sequence[bytes], answers: Sequence[bool | None]) -> None:
    """Refuse the bucket unless one of *bodies*, by *answers*, was created and is what is there."""
    won = [body for body, answer in zip(bodies, answers, strict=True) if answer]
    if len(won) > 1:
        raise UnfitBucketError(
            f"{bucket.url} let {len(won)} of {len(bodies)} concurrent writers create the same object, so that messages "
            f"could be lost. {_REMEDY}"
        )
    unsure = [body for body, answer in zip(bodies, answers, strict=True) if answer is None]
    there = bucket.get(name)
    if there is None and unsure and not won:
        raise StorageUnavailableError(
            f"{bucket.url} did not answer {counted(len(unsure), 'request')} of the bucket test: try again"
        )
    if there not in (won or unsure):
        what = "cannot be read" if there is None else "has other content"
        raise UnfitBucketError(f"{bucket.url} confirmed that it created an object, but the object {what}. {_REMEDY}")
