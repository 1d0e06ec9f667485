"""A store with a limit of requests per second: ``requests=RATE`` in the URL of any store."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from millstream.core.clock import Clock, SystemClock
from millstream.core.token_bucket import TokenBucket
from millstream.stores.protocol import Store, StoreInputError
from millstream.stores.wrapper import Answer, StoreCall, StoreWrapper

OPTION = "requests="
"""The part of a query that names the rate, in requests a second."""


class ThrottledStore(StoreWrapper):
    """The store *base* with at most *rate* requests a second by this object. The methods are those of :class:`Store`.

    A call is one request, whatever the provider makes of it: an upload in parts counts once.
    """

    def __init__(self, base: Store, rate: float, clock: Clock | None = None) -> None:
        super().__init__(base)
        self._rate = rate
        self._bucket = TokenBucket(rate, clock or SystemClock())

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:
        self._bucket.take()
        return super().perform(call, act)

    @property
    def url(self) -> str:
        return with_rate(self.store.url, self._rate)


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
        raise StoreInputError(
            f"invalid option {named[-1]!r}: write the maximum number of requests per second, above 0, such "
            f"as {OPTION}50"
        )
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
