"""Log lines of commands that run until they are stopped: text on a terminal, otherwise a JSON object per line."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.core import tracing
from millstream.core.errors import MillstreamError
from millstream.core.printable import printable
from millstream.core.secrets import without_secrets

_OURS = "millstream"

_EXPECTED = (
    ("grpc._cython.cygrpc", "Aborting method"),  # of each client that is connected when the broker stops or moves
    ("urllib3.connectionpool", "Connection pool is full"),  # to a bucket: as many are kept as S3 clients have at most
)
"""Warnings of libraries that need no action, by logger and beginning."""


def start_logging(form: str, level: str, *, debug: bool = False, secrets: Collection[str] = ()) -> None:
    """Write log lines of *level* and worse to standard error from now on, in the *form* ``console``, ``json`` or
    ``auto``, which depends on whether that is a terminal; *debug* shows tracebacks to people as well.

    What libraries have to say is written from warnings on, except for what is expected. *secrets* are hidden, and so
    are those in URLs and behind names such as ``password``.
    """
    stop_logging()
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    form_line = json_line if as_json else functools.partial(console_line, debug=debug)
    logging.getLogger().addHandler(_Lines(functools.partial(form_line, secrets=secrets)))
    logging.getLogger(_OURS).setLevel(level.upper())
    threading.excepthook = _log_end_of_thread


def stop_logging() -> None:
    """Write no more log lines. Has no effect if none are written."""
    for handler in _written():
        logging.getLogger().removeHandler(handler)
        logging.getLogger(_OURS).setLevel(logging.NOTSET)
        threading.excepthook = threading.__excepthook__


INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells (128 + SIGINT)."""


def print_error(text: str) -> None:
    """Tell *text*, the last word of a command, on standard error: as a log line where such are written."""
    if _written():
        logging.getLogger(_OURS).error("%s", text)
    else:
        lines = "\n".join(map(printable, text.split("\n")))
        print(f"{_OURS}: {lines}", file=sys.stderr)


def describe_error(error: Exception) -> str:
    """*error* in one line for people. What is not raised on purpose also says how to see where it came from."""
    if isinstance(error, MillstreamError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    first = str(error).strip().partition("\n")[0]
    return f"unexpected {type(error).__name__}: {first} (`millstream --debug …` shows where)"


def json_line(record: logging.LogRecord, *, secrets: Collection[str] = ()) -> str:
    """*record* as one JSON object: ``time`` (UTC), ``level``, ``logger``, ``message``; in a trace ``trace_id`` and
    ``span_id``; of an exception ``error`` and ``traceback``."""
    line = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": without_secrets(record.getMessage(), secrets),
    }
    if (span := tracing.current()) is not None:
        line["trace_id"], line["span_id"] = span
    if error := _error_of(record):
        line["error"] = without_secrets(_named(error), secrets)
        line["traceback"] = without_secrets("".join(traceback.format_exception(error)), secrets)
    return msgspec.json.encode(line).decode("utf-8")


def console_line(record: logging.LogRecord, *, debug: bool = False, secrets: Collection[str] = ()) -> str:
    """*record* as a line for people; its traceback is shown with *debug* alone.

    Further lines are indented, so that none of them looks like a record: a server whose answer an error quotes may have
    written it.
    """
    time = datetime.fromtimestamp(record.created, UTC)
    name = record.name.removeprefix(_OURS).lstrip(".")
    text = f"{time:%Y-%m-%dT%H:%M:%SZ} {record.levelname.lower():<7} {f'{name}: ' if name else ''}{record.getMessage()}"
    if (span := tracing.current()) is not None:
        text += f" (trace {span[0]})"
    if error := _error_of(record):
        text += f": {_named(error)}"
        text += "\n" + "".join(traceback.format_exception(error)).rstrip() if debug else " (`--debug` shows where)"
    return "\n    ".join(map(printable, without_secrets(text, secrets).split("\n")))


class _Lines(logging.StreamHandler[Any]):
    def __init__(self, form: Callable[[logging.LogRecord], str]) -> None:
        super().__init__(sys.stderr)
        self._form = form
        self.addFilter(_is_shown)

    def format(self, record: logging.LogRecord) -> str:
        return self._form(record)


def _is_shown(record: logging.LogRecord) -> bool:
    if record.name.partition(".")[0] == _OURS:
        return True
    is_expected = any(record.name == name and str(record.msg).startswith(text) for name, text in _EXPECTED)
    return record.levelno >= logging.WARNING and not is_expected


def _written() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "a thread"
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        logging.getLogger(_OURS).error("%s has failed", name, exc_info=ended.exc_value)
