"""``millstream log append``: append the lines of files, or of standard input, to a log."""

from __future__ import annotations

import os
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click

from millstream.cli.common import store_options
from millstream.cli.examples import example
from millstream.cli.logging_setup import INTERRUPTED, print_error
from millstream.cli.output import ReaderEndedError, ends_with_reader
from millstream.core.errors import InputError, MillstreamError
from millstream.core.message import MessageError, check_source, decode_line
from millstream.log import IdRange, LogSpec, Message, Writer
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store

_GATHER = 4 << 20  # bytes; more that is ready to be read waits for the next commit
_LONGEST = 64 << 20  # bytes in a line

Line = TypeVar("Line", bytes, Message)


class ConfirmationLostError(MillstreamError):
    """No process reads the confirmations any more."""


@example("millstream log append weather readings.jsonl --jsonl")
@click.command()
@click.argument("name")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--jsonl", is_flag=True, help="Lines are JSON objects with the fields of a message.")
@store_options
@ends_with_reader
def append(settings: Settings, name: str, files: tuple[Path, ...], jsonl: bool) -> int:
    """Append the lines of FILES (or of standard input) to the log NAME, one message per line.

    Prints "FIRST LAST", the ids, each time lines are durable. Lines that are available together are stored together; a
    single line is stored at once. The log is created if it does not exist. Without --jsonl every line is a message,
    including empty ones. Line ends are not stored: `log read` prints one after each message.

    With --jsonl a line has the members body (or body_base64), key, source, event_time, received_at and headers, as `log
    read --jsonl` prints them; only the body is required. Times are microseconds since the epoch, or ISO 8601 with a
    zone, such as "2013-01-31T12:00:00.25Z". Empty lines are skipped.
    """
    commits = settings.log.bucket_commits
    with open_log_store(settings.log_url, bucket_commits=commits) as store:
        log = store.log(LogSpec(name))
        try:
            with log.writer() as writer:
                _append_files(writer, files, jsonl)
        except KeyboardInterrupt:
            print_error(
                f"interrupted: the log ends at id {log.last_id}; if this is more than the last id that was printed, "
                "the lines between are stored, too: append only the lines after them"
            )
            return INTERRUPTED
    return 0


def _append_files(writer: Writer, files: Sequence[Path], jsonl: bool) -> None:
    for place, file in enumerate(files or (Path("-"),)):
        try:
            _append_file(writer, file, jsonl)
        except InputError as error:
            if not place:
                raise
            raise InputError(
                f"{error}. All lines of the files before {_where(file)} are stored: do not append these files again"
            ) from error


def _append_file(writer: Writer, file: Path, jsonl: bool) -> None:
    handle = sys.stdin.fileno() if file == Path("-") else os.open(file, os.O_RDONLY)
    number = 1
    try:
        for lines in _runs_of_lines(handle, file):
            if jsonl:
                _append_json(writer, lines, file, number)
            else:
                _append(writer, lines)
            number += len(lines)
    finally:
        if file != Path("-"):
            os.close(handle)


def _append_json(writer: Writer, lines: list[bytes], file: Path, number: int) -> None:
    messages: list[Message] = []
    if number == 1:
        lines = [lines[0].removeprefix(BOM_UTF8), *lines[1:]]
    try:
        for line in lines:
            if line.strip():
                message = decode_line(line, written=True)
                check_source(message, ticks=True)
                messages.append(message)
            number += 1
    except MessageError as error:
        _append(writer, messages)
        raise InputError(f"{_where(file)}, line {number}: {error}. {_how_to_continue(number)}") from error
    _append(writer, messages)


def _where(file: Path) -> str:
    """The name of *file* in an error."""
    return "standard input" if file == Path("-") else str(file)


def _how_to_continue(number: int) -> str:
    """The remedy for the invalid line *number* (from 1)."""
    if number == 1:
        return "Nothing of it is stored: fix line 1, and append it again"
    stored = "Line 1 is stored" if number == 2 else f"Lines 1 to {number - 1} are stored"
    return f"{stored}: fix line {number}, and append again from line {number} (`tail -n +{number}`)"


def _append(writer: Writer, lines: list[Line]) -> None:
    if lines:
        ids = writer.append(lines)
        if ids is not None:
            _confirm(ids)


def _confirm(ids: IdRange) -> None:
    try:
        click.echo(f"{ids.first} {ids.last}")
        sys.stdout.flush()
    except ReaderEndedError as error:
        raise ConfirmationLostError(
            f"the pipe that receives the confirmations was closed: all messages up to id {ids.last} are "
            "stored, none after it; append the rest again"
        ) from error


def _runs_of_lines(handle: int, file: Path) -> Iterator[list[bytes]]:
    """All complete lines that are available, without their ends; the last line may lack its end."""
    rest, number = b"", 1
    while chunk := _ready_bytes(handle):
        *lines, tail = chunk.split(b"\n")
        if lines:
            yield [rest + lines[0], *lines[1:]]
            number += len(lines)
            rest = b""
        rest += tail
        if len(rest) > _LONGEST:
            raise InputError(
                f"{_where(file)}, line {number}: the line is longer than {_LONGEST:,} bytes, the limit of a message; "
                f"store its content with `millstream store put`. {_how_to_continue(number)}"
            )
    if rest:
        yield [rest]


def _ready_bytes(handle: int) -> bytes:
    """The bytes that are available: waits for the first byte, not for more. Empty at the end."""
    chunks = [os.read(handle, 1 << 20)]
    size = len(chunks[0])
    while chunks[-1] and size < _GATHER and select.select([handle], [], [], 0)[0]:
        chunks.append(os.read(handle, 1 << 20))
        size += len(chunks[-1])
    return b"".join(chunks)
