"""Amounts as people write them on a command line."""

from __future__ import annotations

import re

import click

from millstream.settings import parse_duration


class Duration(click.ParamType[int]):
    """A time such as 90s, 12h or 30d, in microseconds."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes such as 500000, 64MB or 10GiB."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?", str(value))
        if match is None:
            self.fail(f"{value!r} is no size: write 500000, 64MB or 10GiB", param, ctx)
        unit: int = (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")
        return round(float(match[1]) * unit)
