"""Options for the Spark master and the location of results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from millstream.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def master_option(command: Command) -> Command:
    """Give *command*, whose first argument is the :class:`Settings`, ``--master`` and ``--results``.

    Both override the settings.
    """

    @click.option(
        "--master", metavar="URL", help="Spark master, such as local[2] (default: the setting pipeline.master)."
    )
    @click.option(
        "--results",
        metavar="PATH|URL",
        help="Keep results in this folder, or at this storage provider, such as s3://… (default: the setting "
        "pipeline.results).",
    )
    @functools.wraps(command)
    def with_master(settings: Settings, *args: Any, master: str | None, results: str | None, **kwargs: Any) -> Any:
        given = {name: value for name, value in (("master", master), ("results", results)) if value}
        if given:
            settings = msgspec.structs.replace(settings, pipeline=msgspec.structs.replace(settings.pipeline, **given))
        return command(settings, *args, **kwargs)

    return with_master  # type: ignore[return-value]
