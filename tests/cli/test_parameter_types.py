"""Times and sizes on the command line: with a unit everywhere, and as bare numbers where they were taken before."""

from __future__ import annotations

import click
import pytest

from millstream.cli.parameter_types import RecordDuration, Seconds, SizeType, Timestamp


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (RecordDuration(), "50", 50),
        (RecordDuration(), "30m", 1_800_000_000),
        (RecordDuration(), "-1", -1),
        (Seconds(), "500ms", 0.5),
        (Seconds(), "10", 10.0),
        (Seconds(), "1.5", 1.5),
        (SizeType(1, 2**20), "1048576", 2**20),
        (SizeType(1, 2**20), "1MiB", 2**20),
        (Timestamp(), "0", 0),
        (Timestamp(), "2013-01-31T12:00:00.25Z", 1_359_633_600_250_000),
    ],
)
def test_a_time_or_size_is_taken_with_its_unit(kind: click.ParamType[float], text: str, value: float) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (RecordDuration(), "soon", "write a time such as 500ms, 30s"),
        (Seconds(0.001), "100us", "at least 0.001 s"),
        (Seconds(), "-1", "write a time such as 500ms, 30s"),
        (SizeType(1), "0", "too small: give at least 1 bytes"),
        (SizeType(1, 2**20), "2MiB", "too large: give at most 1,048,576 bytes"),
        (Timestamp(), "yesterday", "write 2013-01-31T12:00Z, or microseconds"),
        (Timestamp(), "2013-01-31T12:00", "has no time zone"),
    ],
)
def test_what_cannot_be_taken_says_what_to_write(kind: click.ParamType[float], text: str, reason: str) -> None:
    with pytest.raises(click.BadParameter, match=reason):
        kind.convert(text, None, None)
