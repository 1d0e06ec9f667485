"""A store that is asked no more often than its provider likes: ``requests=RATE`` in the URL of any store."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

from millstream.core.clock import Clock, SystemClock
from millstream.stores.protocol import DEFAULT_MIMETYPE, Entry, ItemInfo, SpaceAccess, Store, StoreInputError

OPTION = "requests="
"""The part of a query that names the rate, in requests a second."""


class TokenBucket:
    """Lets *rate* calls a second pass, and up to *burst* at once after a pause; the others wait. Thread-safe."""

    def __init__(self, rate: float, clock: Clock, *, burst: float = 1.0) -> None:
        self._rate, self._clock, self._burst = rate, clock, burst
        self._lock = threading.Lock()
        self._tokens, self._at = burst, clock.monotonic()

    def take(self) -> None:
        """Wait until it is this call's turn."""
        with self._lock:  # whoever comes later takes a later token, and so waits longer
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1
            wait = -self._tokens / self._rate
        if wait > 0:
            self._clock.sleep(wait)


class ThrottledStore:
    """The store *base* with at most *rate* requests a second by this object. The methods are those of :class:`Store`.

    A call is one request, whatever the provider makes of it: an upload in parts counts once.
    """

    def __init__(self, base: Store, rate: float, clock: Clock | None = None) -> None:
        self._base, self._rate = base, rate
        self._bucket = TokenBucket(rate, clock or SystemClock())

    @property
    def url(self) -> str:
        return with_rate(self._base.url, self._rate)

    def spaces(self) -> Sequence[str]:
        return self._asked().spaces()

    def has_space(self, space: str) -> bool:
        return self._asked().has_space(space)

    def create_space(self, space: str) -> None:
        self._asked().create_space(space)

    def delete_space(self, space: str) -> None:
        self._asked().delete_space(space)

    def space_acls(self, space: str) -> Mapping[str, SpaceAccess]:
        return self._asked().space_acls(space)

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        self._asked().set_space_acls(space, acls)

    def entries(self, space: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Entry]:
        return self._asked().entries(space, prefix=prefix, after=after, limit=limit)

    def info(self, space: str, content_id: str) -> ItemInfo:
        return self._asked().info(space, content_id)

    def open(
        self, space: str, content_id: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BinaryIO]:
        return self._asked().open(space, content_id, start=start, length=length)

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
    ) -> ItemInfo:
        return self._asked().put(
            space, content_id, source, mimetype=mimetype, properties=properties, sha256=sha256, create_only=create_only
        )

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        return self._asked().set_properties(space, content_id, properties)

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        return self._asked().copy(space, content_id, to_space, to_content_id)

    def delete(self, space: str, content_id: str) -> None:
        self._asked().delete(space, content_id)

    def _asked(self) -> Store:
        self._bucket.take()
        return self._base


def split_rate(url: str) -> tuple[str, float | None]:
    """*url* without its rate, and the rate; None where it names none. Raises :class:`StoreInputError` for a bad one."""
    parts = urlsplit(url)
    pieces = parts.query.split("&") if parts.query else []
    named = [piece for piece in pieces if piece.startswith(OPTION)]
    if not named:
        return url, None
    try:
        rate = float(named[-1].removeprefix(OPTION))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise StoreInputError(f"{named[-1]!r}: write the most requests a second, a number above 0, such as {OPTION}50")
    rest = "&".join(piece for piece in pieces if piece not in named)
    return urlunsplit(parts._replace(query=rest)), rate


def with_rate(url: str, rate: float) -> str:
    """*url*, which names no rate, with *rate*."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, f"{OPTION}{rate:.6g}")))))


def shared_rate(url: str, tasks: int) -> str:
    """*url* for each of *tasks* that work side by side: what they may ask is shared out among them."""
    base, rate = split_rate(url)
    return url if rate is None else with_rate(base, rate / max(1, tasks))
