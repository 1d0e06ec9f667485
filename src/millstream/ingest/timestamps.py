"""Times in payloads: ISO 8601 with a zone, or a count since the epoch, read exactly."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Literal

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.core.decoding import prepared
from millstream.core.timestamps import to_microseconds
from millstream.ingest.errors import MalformedError

Unit = Literal["s", "ms", "us", "ns"]
"""The unit of a count since the epoch."""

_TICKS = {"s": Decimal(MICROSECONDS), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
_FARTHEST = 2**53  # microseconds either way: the years 1684 to 2255
_RANGE = "times must be from July 1684 to June 2255"
_text = msgspec.json.Decoder(prepared(str))
_count = msgspec.json.Decoder(prepared(Decimal))


def read_timestamp(raw: bytes | msgspec.Raw, unit: Unit = "s") -> int:
    """Microseconds since the epoch of the JSON value *raw*; a count is in *unit*, rounded down to whole microseconds.

    Counts are read as decimals, so that 987.138 seconds are 987,138,000 microseconds. Raises :class:`MalformedError`.
    """
    try:
        moment = _written(_text.decode(raw)) if bytes(raw)[:1] == b'"' else _counted(_count.decode(raw), unit)
    except (msgspec.DecodeError, UnicodeDecodeError, ArithmeticError) as error:
        shown = bytes(raw)[:60].decode("utf-8", "replace")
        raise MalformedError("time", f"the time {shown} is neither ISO 8601 nor a number since the epoch") from error
    if not -_FARTHEST < moment < _FARTHEST:
        raise MalformedError(
            "time",
            f"the time is out of range: {moment} microseconds since the epoch; {_RANGE}; check the unit (--unit)",
        )
    return moment


def _counted(count: Decimal, unit: Unit) -> int:
    if abs(count) > Decimal(10) ** 20:
        raise MalformedError("time", f"the time {str(count)[:60]} is out of range; {_RANGE}; check the unit (--unit)")
    ticks = count * _TICKS[unit]
    return int(ticks // 1) - (ticks < 0 and ticks % 1 != 0)


def _written(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise MalformedError("time", f"the time is not ISO 8601: {text[:60]!r}") from error
    if moment.tzinfo is None:
        raise MalformedError("time", f"the time has no time zone; write it with Z or an offset: {text[:60]!r}")
    try:
        return to_microseconds(moment)
    except OverflowError as error:
        raise MalformedError("time", f"the time is out of range: {text[:60]!r}; {_RANGE}") from error
