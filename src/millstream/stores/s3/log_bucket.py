"""A bucket of S3 as the place of logs: a ``Bucket`` of ``millstream.log.backends.objects`` over :class:`S3Calls`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.retry import RetryPolicy
from millstream.log.backends.objects.bucket import UnknownOutcomeError
from millstream.log.backends.objects.server_clock import ServerClock
from millstream.log.errors import LogInputError, StorageError, StorageUnavailableError
from millstream.stores.hashing import read_up_to
from millstream.stores.protocol import ItemNotFoundError, StoreError, StoreInputError, StoreUnavailableError
from millstream.stores.s3.address import S3Address, parse_address
from millstream.stores.s3.client import RETRIES, S3Calls
from millstream.stores.s3.errors import (
    TRANSIENT,
    BucketMissingError,
    ConditionFailedError,
    EmptyRangeError,
    translated,
)
from millstream.stores.s3.listing import PAGE, list_objects
from millstream.stores.s3.objects import size_of
from millstream.stores.s3.reading import require_range
from millstream.stores.s3.uploads import checked_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_s3 import S3Client

LOG_RETRIES = msgspec.structs.replace(RETRIES, within=30.0)
"""As for stores; but a server that leaves requests without an answer is not waited for several times: writers wait."""

_DELETE_AT_ONCE = 1000

Answer = TypeVar("Answer")


class S3LogBucket:
    """The objects below the prefix of *address*. The methods are those of ``Bucket``.

    *retries* is how requests are repeated that may be; *client* is one of boto3 to be used in place of an own one.
    """

    def __init__(
        self,
        address: S3Address,
        *,
        clock: Clock | None = None,
        retries: RetryPolicy = LOG_RETRIES,
        client: S3Client | None = None,
    ) -> None:
        if address.space is not None:
            raise LogInputError(f"a log store has no option 'space': remove it from the URL of {address}")
        self._address = address
        self._clock = clock or SystemClock()
        self._calls = S3Calls(address, retries, self._clock, client)
        self._server_clock = ServerClock(self._clock)

    @property
    def url(self) -> str:
        return self._address.url

    def create(self, name: str, data: bytes) -> bool:
        with _explained():
            try:
                self._once("put_object", Key=self._key(name), IfNoneMatch="*", **_body(data))
            except ConditionFailedError:
                return False
            except StoreError as error:
                if error.transient:
                    raise UnknownOutcomeError(str(error)) from error
                raise
        return True

    def put(self, name: str, data: bytes) -> None:
        self._repeat(lambda: self._once("put_object", Key=self._key(name), **_body(data)))

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        if length == 0:
            length = 1
        return self._repeat(lambda: self._get(name, start, length))

    def _get(self, name: str, start: int, length: int | None) -> bytes | None:
        is_part = bool(start) or length is not None
        bytes_range = {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"} if is_part else {}
        try:
            answer = self._once("get_object", Key=self._key(name), **bytes_range)
        except ItemNotFoundError:
            return None
        except EmptyRangeError:
            return b""
        if is_part:
            require_range(self._calls, self._key(name), start, answer)
        with translated(f"reading {name!r} of {self._address}"), contextlib.closing(answer["Body"]) as body:
            data: bytes = body.read() if length is None else read_up_to(body, length + 1)[:length]
        return data

    def size(self, name: str) -> int | None:
        return self._repeat(lambda: self._size(name))

    def _size(self, name: str) -> int | None:
        try:
            answer = self._once("head_object", Key=self._key(name))
        except ItemNotFoundError:
            return None
        return size_of(answer, self._key(name))

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        start = len(self._address.prefix)
        low = after.encode()[len(prefix.encode()) :] if after.startswith(prefix) else b""
        names: list[str] = []
        with _explained():
            for line in list_objects(self._calls, self._address.prefix + prefix, "", low, min(limit, PAGE)):
                if len(names) == limit:
                    break
                names.append(line["Key"][start:])
        return names

    def delete(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _DELETE_AT_ONCE):
            some = names[first : first + _DELETE_AT_ONCE]
            self._repeat(lambda: self._delete(some))  # noqa: B023

    def _delete(self, names: Sequence[str]) -> None:
        objects = [{"Key": self._key(name)} for name in names]
        answer = self._once("delete_objects", Delete={"Objects": objects, "Quiet": True})
        refused = sorted(answer.get("Errors", ()), key=lambda one: one.get("Code") in TRANSIENT)
        if refused:
            first = refused[0]
            kind = StoreUnavailableError if first.get("Code") in TRANSIENT else StoreError
            raise kind(
                f"deleting {len(refused):,} of {len(names):,} objects of {self._address} failed: {first.get('Key')!r}: "
                f"{first.get('Code')}: {first.get('Message')}"
            )

    def server_time(self) -> int:
        if not self._server_clock.is_set:
            self._repeat(lambda: self._once("list_objects_v2", Prefix=self._address.prefix, MaxKeys=1))
        return self._server_clock.now()

    def close(self) -> None:
        self._calls.close()

    def _key(self, name: str) -> str:
        return self._address.prefix + name

    def _once(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        answer = self._calls.once(operation, **arguments)
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
        with contextlib.suppress(ValueError, OverflowError):  # there is none, or it is none
            self._server_clock.observe(round(parsedate_to_datetime(date).timestamp()) * MICROSECONDS)
        return answer

    def _repeat(self, request: Callable[[], Answer]) -> Answer:
        with _explained():
            return self._calls.policy.call(request, self._clock)


def open_log_bucket(url: str, clock: Clock | None = None) -> S3LogBucket:
    """The place in a bucket that *url* names. Raises :class:`LogInputError`."""
    try:
        return S3LogBucket(parse_address(url), clock=clock)
    except StoreInputError as error:
        raise LogInputError(str(error)) from error


def _body(data: bytes) -> dict[str, Any]:
    return {"ContentType": "application/octet-stream", **checked_body(data)}


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn the errors of stores into those of logs."""
    try:
        yield
    except BucketMissingError as error:
        raise StorageError(str(error)) from error
    except StoreInputError as error:
        raise LogInputError(str(error)) from error
    except StoreError as error:
        raise (StorageUnavailableError if error.transient else StorageError)(str(error)) from error
