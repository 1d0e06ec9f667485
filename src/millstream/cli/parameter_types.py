"""Amounts and times as people write them on a command line."""

from __future__ import annotations

import click

from millstream.core.amounts import parse_duration, parse_size
from millstream.core.timestamps import parse_timestamp


class Duration(click.ParamType[int]):
    """A time such as 90s, 12h or 30d, in microseconds."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType[int]):
    """A number of bytes such as 500000, 64MB or 10GiB."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Timestamp(click.ParamType[int]):
    """A time such as 2026-11-24T12:00Z, in microseconds since the epoch."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
