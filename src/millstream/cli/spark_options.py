"""Where the jobs of Spark run, for one command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from millstream.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def master_option(command: Command) -> Command:
    """Give *command*, whose first argument is the :class:`Settings`, ``--master URL``, which wins over the settings."""

    @click.option("--master", metavar="URL", help="Spark master, such as local[2] (default: by the settings).")
    @functools.wraps(command)
    def with_master(settings: Settings, *args: Any, master: str | None, **kwargs: Any) -> Any:
        if master:
            settings = msgspec.structs.replace(
                settings, pipeline=msgspec.structs.replace(settings.pipeline, master=master)
            )
        return command(settings, *args, **kwargs)

    return with_master  # type: ignore[return-value]
