"""Times as people write them, ISO 8601, as the microseconds that messages hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """*microseconds* since the epoch, in UTC. Raises OverflowError for a time that no calendar has."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(moment: datetime) -> int:
    """Microseconds since the epoch of *moment*, which is in UTC where it names no zone.

    Raises OverflowError for a time that UTC cannot express.
    """
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def format_timestamp(microseconds: int) -> str:
    """*microseconds* since the epoch as :func:`parse_timestamp` reads them, in UTC.

    Raises OverflowError for a time that no calendar has.
    """
    return to_datetime(microseconds).isoformat().replace("+00:00", "Z")


def time_text(microseconds: int) -> str:
    """:func:`format_timestamp` of *microseconds*, or the number where no calendar has the time."""
    try:
        return format_timestamp(microseconds)
    except OverflowError:
        return str(microseconds)


def parse_timestamp(text: str) -> int:
    """Microseconds since the epoch of *text*, ISO 8601 with a zone, such as ``2013-01-31T12:00:00.25Z``.

    Raises ValueError that says what is wrong with it; a time without a zone may mean any of two dozen.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"invalid time {text[:60]!r}: write 2013-01-31T12:00Z, or microseconds since the epoch"
        ) from error
    if moment.tzinfo is None:
        raise ValueError(f"time {text[:60]!r} has no time zone: write it with Z or an offset, such as +01:00")
    return to_microseconds(moment)
