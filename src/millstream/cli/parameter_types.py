"""Parameter types for amounts and times on the command line."""

from __future__ import annotations

import click

from millstream.core.amounts import parse_duration, parse_size
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import parse_timestamp


class Duration(click.ParamType[int]):
    """A time such as 90s, 12h or 30d, in microseconds."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType[float]):
    """A time such as 500ms, 10s or a number of seconds, in seconds; at least *least*."""

    name = "duration"

    def __init__(self, least: float = 0) -> None:
        self._least = least

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return value
        try:
            seconds = parse_duration(value) / MICROSECONDS
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < self._least:
            self.fail(f"{value} is too short: give at least {self._least} s", param, ctx)
        return seconds


class RecordDuration(click.ParamType[int]):
    """A length of time between records: ``30m``, in microseconds, or an integer in the records' own unit."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(value)
        except ValueError:
            return Duration().convert(value, param, ctx)


class SizeType(click.ParamType[int]):
    """A number of bytes such as 500000, 64MB or 10GiB; from *least* to *most* of them."""

    name = "size"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self._least:
            self.fail(f"{value} is too small: give at least {self._least:,} bytes", param, ctx)
        if self._most is not None and size > self._most:
            self.fail(f"{value} is too large: give at most {self._most:,} bytes", param, ctx)
        return size


class Timestamp(click.ParamType[int]):
    """A time such as 2026-11-24T12:00Z or in microseconds, as microseconds since the epoch."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int) or value.isdecimal():
            return int(value)
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
