"""What all commands share: where the data lies, how results are printed, how errors end the process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from millstream.core.errors import MillstreamError
from millstream.settings import Settings, load_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def data_options(command: Command) -> Command:
    """Give *command* ``--data DIR`` and ``--config FILE``; its first argument is the :class:`Settings` they lead to."""

    @click.option("--data", metavar="DIR", help="The node's folder (default ./millstream-data).")
    @click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings file (TOML).")
    @functools.wraps(command)
    def with_settings(*args: Any, data: str | None, config: Path | None, **kwargs: Any) -> Any:
        settings, _ = load_settings({"data": data}, config=config)
        return command(settings, *args, **kwargs)

    return with_settings  # type: ignore[return-value]


def store_options(command: Command) -> Command:
    """Like :func:`data_options`, and ``--store URL``, which wins, for a bare log store in place of a node's own."""

    @click.option("--store", metavar="URL", help="A bare log store, such as sqlite:///path/log.db.")
    @data_options
    @functools.wraps(command)
    def with_store(settings: Settings, *args: Any, store: str | None, **kwargs: Any) -> Any:
        if store and store.startswith("memory:"):
            raise click.UsageError("a memory: store ends with the command that opens it; name one on a disk")
        if store:
            settings = msgspec.structs.replace(settings, log=msgspec.structs.replace(settings.log, store=store))
        return command(settings, *args, **kwargs)

    return with_store  # type: ignore[return-value]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

metrics_option = click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep the figures in FILE, as Prometheus reads them.",
)


def print_json(value: Any) -> None:
    """Print *value* (a struct, dict or list) as one line of JSON."""
    line = msgspec.json.encode(value, order="sorted")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def is_terminal() -> bool:
    """Whether a person is watching: progress bars are drawn there, plain lines elsewhere."""
    return sys.stderr.isatty()


def size_text(count: float) -> str:
    """Bytes for people: ``35.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def explain(error: Exception) -> str:
    """*error* in one line for people. What is not raised on purpose also says how to see where it came from."""
    if isinstance(error, MillstreamError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    first = str(error).strip().partition("\n")[0]
    return f"unexpected {type(error).__name__}: {first} (`millstream --debug …` shows where)"
