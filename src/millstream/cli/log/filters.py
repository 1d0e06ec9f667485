"""The filters of ``millstream log read``, and the search that they start."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from millstream.cli.common import is_terminal
from millstream.core.errors import InputError
from millstream.core.message import encode_line
from millstream.core.timestamps import to_microseconds
from millstream.log import Log, MessageFilter, search_messages

_MOST_AT_ONCE = 10_000
_CLEAR = "\r\x1b[K"  # back to the beginning of the line, which is emptied

_TIME = "2013-01-31T12:00Z, or microseconds since the epoch"
_OPTIONS = (
    click.option("--key", help="Only messages with this key."),
    click.option("--source", help="Only messages of this source."),
    click.option("--header", metavar="NAME[=VALUE]", help="Only messages with this header, or with this value of it."),
    click.option("--text", help="Only messages whose body contains this text (case-sensitive)."),
    click.option("--since", metavar="TIME", help=f"Only messages of this time or later: {_TIME}."),
    click.option("--until", metavar="TIME", help="Only messages before this time, in the same form."),
    click.option(
        "--time",
        "time",
        type=click.Choice(["received", "event"]),
        default="received",
        show_default=True,
        help="The time that --since and --until compare.",
    ),
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that pass *command* their filter as ``wanted``: None if none of them is given."""

    @functools.wraps(command)
    def with_filter(
        *args: Any, header: str | None, since: str | None, until: str | None, time: Any, **more: Any
    ) -> Any:
        texts = {name: more.pop(name) for name in ("key", "source", "text")}
        name, equals, header_value = (header or "").partition("=")
        given = (
            header is not None or since is not None or until is not None or any(t is not None for t in texts.values())
        )
        wanted = MessageFilter(
            **texts,
            header=None if header is None else name,
            value=header_value if equals else None,
            since=None if since is None else microseconds("--since", since),
            until=None if until is None else microseconds("--until", until),
            time=time,
        )
        return command(*args, wanted=wanted if given else None, **more)

    for option in reversed(_OPTIONS):
        with_filter = option(with_filter)
    return with_filter


def print_matches(log: Log, wanted: MessageFilter, first_id: int | None, count: int | None, *, jsonl: bool) -> int:
    """Print the messages of *log* from *first_id* on that *wanted* describes, *count* at most (default: all), and say
    on standard error what was searched. Ctrl-C stops the search and says where to resume it.

    Returns the exit code: 1 if some of them could not be searched.
    """
    begin, end, found, code = first_id or log.first_id, log.last_id, 0, 0
    following: int | None = begin
    try:
        while following is not None and found != count:
            limit = _MOST_AT_ONCE if count is None else min(_MOST_AT_ONCE, count - found)
            step = search_messages(log, wanted, first_id=following, last_id=end, limit=limit)
            for message in step.messages:
                sys.stdout.buffer.write((encode_line(message) if jsonl else message.body) + b"\n")
            sys.stdout.buffer.flush()
            for hole in step.unreadable:
                _say(f"ids {hole.first_id:,} to {hole.last_id:,} could not be searched: {hole.reason}")
                code = 1
            found, following = found + len(step.messages), step.next_id
            if following is not None and is_terminal():
                click.echo(f"{_CLEAR}{_searched(begin, following - 1, end, found)} so far", err=True, nl=False)
    except KeyboardInterrupt:
        _say(f"{_searched(begin, (following or begin) - 1, end, found)}; resume with --from {following}")
        raise
    _say(_searched(begin, end if following is None else following - 1, end, found))
    return code


def microseconds(option: str, text: str) -> int:
    """The time *text*, the value of *option*, in ISO 8601 (UTC where it names no zone) or in microseconds."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{option}: invalid time {text!r}: write 2013-01-31T12:00Z, or microseconds since the epoch"
        ) from error
    return to_microseconds(moment)


def _searched(begin: int, last: int, end: int, found: int) -> str:
    result = f"{found:,} {'message' if found == 1 else 'messages'} found" if found else "nothing found"
    if last < begin:
        return f"searched no ids of {end:,}: {result}"
    return f"searched ids {begin:,} to {last:,} of {end:,}: {result}"


def _say(text: str) -> None:
    click.echo(f"{_CLEAR}{text}" if is_terminal() else text, err=True)
