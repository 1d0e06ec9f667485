"""``--processes``: the number of processes for the file work of a command of the mill."""

from __future__ import annotations

import functools
from typing import Any

import click
import msgspec

from millstream.cli.common import Command
from millstream.core.interpreter import collecting_seldom
from millstream.settings import Settings


def processes_option(command: Command) -> Command:
    """Give *command*, whose first argument is the settings, ``--processes``, which overrides ``mill.processes``."""

    @click.option(
        "--processes",
        type=click.IntRange(0),
        metavar="N",
        help="Number of processes for small files of local stores; 0 for none (default: the setting mill.processes).",
    )
    @functools.wraps(command)
    def with_processes(settings: Settings, *args: Any, processes: int | None, **kwargs: Any) -> Any:
        if processes is not None:
            mill = msgspec.structs.replace(settings.mill, processes=processes)
            settings = msgspec.structs.replace(settings, mill=mill)
        with collecting_seldom():
            return command(settings, *args, **kwargs)

    return with_processes  # type: ignore[return-value]
