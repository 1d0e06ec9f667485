"""Groups of commands: their help has the whole summary of each command."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from typing import Any

import click

Table = Mapping[str, tuple[str, str]]
"""For each command where it is defined, as ``module:name``, and the first sentence of its help."""


def load_command(place: str) -> click.Command:
    """The command that is defined at *place*, ``module:name``."""
    command: click.Command = pkgutil.resolve_name(place)
    return command


class SummaryGroup(click.Group):
    """A group whose help wraps long summaries of commands; the help of a ``click.Group`` cuts them off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(sys.maxsize)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class CommandGroup(click.Group):
    """The commands of tables, by title. Each is loaded only when it is called.

    The help of the group is printed from the tables, and loads no command.
    """

    def __init__(self, *args: Any, tables: Mapping[str, Table], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tables = tables

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for table in self.tables.values() for name in table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        for table in self.tables.values():
            if cmd_name in table:
                return load_command(table[cmd_name][0])
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, table in self.tables.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in table.items()])
