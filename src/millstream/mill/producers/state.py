"""The state of a looping producer: what is left of its loop, in a document that is replaced as a whole."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.core.documents import Document, DocumentBusyError
from millstream.mill.errors import ProducerBusyError, ProducerStateError


class AnyMorsel(msgspec.Struct, frozen=True, kw_only=True):
    """The remaining work for one space. ``failures`` counts the runs that failed for it since ``failing_since``
    (microseconds, UTC)."""

    failures: int = 0
    failing_since: int | None = None


Morsel = TypeVar("Morsel", bound=AnyMorsel)


class LoopState(msgspec.Struct, Generic[Morsel]):
    """The remaining part of a loop: its ``morsels``, the next one first. Times are microseconds since the epoch, UTC.

    ``started_at`` is set while a loop is under way and ``next_at`` between loops; neither is set before the first.
    """

    morsels: list[Morsel] = msgspec.field(default_factory=list)
    started_at: int | None = None
    next_at: int | None = None
    version: int = 1


DAY = 24 * 3600 * 1_000_000
"""Microseconds in a day."""


class Start(enum.Enum):
    """The next action of a producer."""

    BEGIN = "begin a loop"
    GO_ON = "go on with the loop under way"
    NOT_DUE = "the next loop is not due"
    OFF = "loops are switched off"


def decide_start(state: LoopState[Morsel], now: int, frequency: int) -> Start:
    """The action at *now*, with a loop every *frequency* microseconds; 0 disables new loops. A loop in progress is
    always completed (reference mill §1.5, "Start decision"). One that would be due later than any loop that ends now
    (by as much as a day, for a time of day) is due: the clock was set back since, or loops are to come more often.
    """
    if state.started_at is not None:
        return Start.GO_ON
    if frequency <= 0:
        return Start.OFF
    if state.next_at is not None and now < state.next_at <= now + frequency + DAY:
        return Start.NOT_DUE
    return Start.BEGIN


GRACE = 600 * 1_000_000
"""Microseconds after a time of day in which a first loop still begins on the same day (reference mill §1.5)."""


def first_start(now: int, start: int) -> int:
    """The start of the first loop at *start* microseconds after midnight (UTC), computed at *now*."""
    return now - GRACE + (start - now + GRACE) % DAY


def next_start(started_at: int, frequency: int, start: int | None) -> int:
    """When the loop after the one that began at *started_at* is due.

    With a time of day, *start*, loops do not move away from it, however late after it each of them is looked for.
    """
    if start is None:
        return started_at + frequency
    due = started_at - (started_at - start) % DAY
    return due + frequency * ((started_at - due) // frequency + 1)


class StateDocument(Generic[Morsel]):
    """The state in *document*, of morsels of the type *morsel*."""

    def __init__(self, document: Document, morsel: type[Morsel]) -> None:
        self._document = document
        self._decoder = msgspec.json.Decoder(prepared(LoopState[morsel]))  # type: ignore[valid-type]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes off while the block runs. Raises :class:`ProducerBusyError` where one is at it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._document.alone())
            except DocumentBusyError:
                text = f"another producer is using {self._document}: wait for it, or stop it"
                raise ProducerBusyError(text) from None
            yield

    def load(self) -> LoopState[Morsel]:
        """The state; a fresh one where there is none. Raises :class:`ProducerStateError` for any other content."""
        data = self._document.read()
        if data is None:
            return LoopState()
        try:
            state: LoopState[Morsel] = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProducerStateError(
                f"{self._document} is not a valid state of a producer ({error}): delete the file (in a "
                "database: the row) to begin with the first space again"
            ) from error
        return state

    def save(self, state: LoopState[Morsel]) -> None:
        """Keep *state*, durably."""
        self._document.write(msgspec.json.encode(state))
