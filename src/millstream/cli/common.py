"""Code that all commands share: data and log options, and the printing of results."""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import msgspec

from millstream.cli.logging_setup import start_logging
from millstream.core.printable import printable
from millstream.settings import LogFormat, LogLevel, Settings, load_settings, secret_values, settings_file

if TYPE_CHECKING:
    from millstream.core.metric_collection.collector import MetricsCollector

Command = TypeVar("Command", bound=Callable[..., Any])

_ORIGINS, _FILE, _OWN = (f"{__name__}.{name}" for name in ("origins", "file", "own"))
"""The keys of the settings' origins, of their file and of the settings without options in the context of a command."""


data_option = click.option(
    "--data", metavar="DIR", help="The node's folder (default: MILLSTREAM_DATA, or ./millstream-data)."
)

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file, TOML (default: MILLSTREAM_CONFIG, or millstream.toml in the node's folder).",
)


def data_options(command: Command) -> Command:
    """Give *command* ``--data DIR`` and ``--config FILE``; its first argument is the :class:`Settings` they lead to."""

    @data_option
    @config_option
    @functools.wraps(command)
    def with_settings(*args: Any, data: str | None, config: Path | None, **kwargs: Any) -> Any:
        settings, origins = load_settings({"data": data}, config=config)
        meta = click.get_current_context().meta
        meta[_ORIGINS], meta[_FILE] = origins, settings_file(settings.folder, config=config)
        meta[_OWN] = settings
        return command(settings, *args, **kwargs)

    return with_settings  # type: ignore[return-value]


def setting_origins() -> dict[str, str]:
    """The origins of the settings of the current command, which has :func:`data_options`; see :func:`load_settings`."""
    origins: dict[str, str] = click.get_current_context().meta[_ORIGINS]
    return origins


def own_settings() -> Settings:
    """The settings of the current command, which has :func:`data_options`, without ``--store``."""
    settings: Settings = click.get_current_context().meta[_OWN]
    return settings


def used_settings_file() -> Path:
    """The settings file of the current command, which has :func:`data_options`; it need not exist."""
    path: Path = click.get_current_context().meta[_FILE]
    return path


def store_options(command: Command) -> Command:
    """Like :func:`data_options`, and ``--store URL`` for another log store than the node's."""

    @click.option(
        "--store", metavar="URL", help="Use this log store instead of the node's, such as sqlite:///path/log.db."
    )
    @data_options
    @functools.wraps(command)
    def with_store(settings: Settings, *args: Any, store: str | None, **kwargs: Any) -> Any:
        if store and store.startswith("memory:"):
            raise click.UsageError(
                f"--store {store}: a log store in memory is lost when the command ends: give a log store on disk, on a "
                "database server or in a bucket, such as --store sqlite:///path/log.db"
            )
        if store:
            settings = msgspec.structs.replace(settings, log=msgspec.structs.replace(settings.log, store=store))
            setting_origins()["log.store"] = "flag"
        return command(settings, *args, **kwargs)

    return with_store  # type: ignore[return-value]


def log_options(command: Command) -> Command:
    """Give *command*, whose first argument is the settings, ``--log-format`` and ``--log-level``, and log lines."""

    @click.option(
        "--log-format",
        type=click.Choice(get_args(LogFormat)),
        help="Format of log lines (default: the setting logging.format).",
    )
    @click.option(
        "--log-level",
        type=click.Choice(get_args(LogLevel)),
        help="Lowest level of log lines (default: the setting logging.level).",
    )
    @functools.wraps(command)
    def with_lines(settings: Settings, *args: Any, log_format: str | None, log_level: str | None, **kwargs: Any) -> Any:
        debug = bool(click.get_current_context().find_root().params.get("debug"))
        form, level = log_format or settings.logging.format, log_level or settings.logging.level
        start_logging(form, level, debug=debug, secrets=secret_values(settings))
        return command(settings, *args, **kwargs)

    return with_lines  # type: ignore[return-value]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")

metrics_option = click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write metrics for Prometheus to FILE, with each status line.",
)


def write_metrics(file: Path | None, metrics: MetricsCollector) -> None:
    """Write *metrics* to the *file* of :data:`metrics_option`, if it is given. A full disk or a folder that is missing
    costs the metrics, which the next status line writes, and not the work that they are about."""
    from millstream.core.metric_collection.prometheus import write_prometheus

    if file is None:
        return
    try:
        write_prometheus(file, metrics.figures())
    except OSError as error:
        with contextlib.suppress(OSError):  # standard error may be on the same disk
            echo_line(f"--metrics {file} could not be written: {error.strerror}", err=True)


def print_json(value: Any) -> None:
    """Print *value* (a struct, dict or list) as one line of JSON."""
    line = msgspec.json.encode(value, order="sorted")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def body_members(body: bytes) -> Mapping[str, str]:
    """The members of a JSON object for *body*: ``body``, or ``body_base64`` where it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def echo_line(text: str, *, err: bool = False) -> None:
    """Print *text*, which names items, as one line (:func:`printable`)."""
    click.echo(printable(text), err=err)


def is_terminal() -> bool:
    """Whether standard error is a terminal: progress bars are drawn there, plain lines elsewhere."""
    return sys.stderr.isatty()
