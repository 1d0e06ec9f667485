"""``millstream log``: write, read and check message logs."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from millstream.cli.change_log import record_change_if_node
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log_relay import relay
from millstream.cli.log_search import filter_options, microseconds, print_matches
from millstream.cli.log_tier import tier
from millstream.cli.log_torture import torture_command
from millstream.cli.log_trim import trim
from millstream.cli.log_upkeep import upkeep
from millstream.core.amounts import format_duration, size_text
from millstream.core.errors import InputError, MillstreamError
from millstream.core.message import MessageError, decode_line, encode_line
from millstream.log import (
    SYSTEM_KINDS,
    Batch,
    Gap,
    IdRange,
    Kind,
    Log,
    LogSpec,
    LogStore,
    Message,
    MessageFilter,
    Writer,
    copy_consumers,
    copy_log,
)
from millstream.log.upkeep.retention import Retention
from millstream.log.upkeep.rules import LogRule, rule_for
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store

_GATHER = 4 << 20  # bytes; more that is ready to be read waits for the next commit
_LONGEST = 64 << 20  # bytes in a line

Line = TypeVar("Line", bytes, Message)


class ConfirmationLostError(MillstreamError):
    """No process reads the confirmations any more."""


@click.group()
def log() -> None:
    """Write, read and check message logs."""


log.add_command(relay)
log.add_command(torture_command)


@example("millstream log create weather")
@log.command()
@click.argument("name")
@store_options
def create(settings: Settings, name: str) -> None:
    """Create the log NAME if it does not exist."""
    with open_log_store(settings.log_url) as store:
        is_new = name not in store.logs()
        store.log(LogSpec(name))
    if is_new:
        record_change_if_node(settings, "create log", f"log {name}")


@example("millstream log append weather readings.jsonl --jsonl")
@log.command()
@click.argument("name")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--jsonl", is_flag=True, help="Lines are JSON objects with body or body_base64, key, source, times.")
@store_options
def append(settings: Settings, name: str, files: tuple[Path, ...], jsonl: bool) -> None:
    """Append the lines of FILES (or of standard input) to the log NAME, one message per line.

    Prints "FIRST LAST", the ids, each time lines are durable. Lines that are available together are stored together; a
    single line is stored at once. The log is created if it does not exist. Without --jsonl every line is a message,
    including empty ones; with it, empty lines are skipped, and times are microseconds since the epoch or ISO 8601 with
    a zone, such as "2013-01-31T12:00:00.25Z". Line ends are not stored: `log read` prints one after each message.
    """
    with open_log_store(settings.log_url) as store, store.log(LogSpec(name)).writer() as writer:
        for file in files or (Path("-"),):
            _append_file(writer, file, jsonl)


@example("millstream log read weather --from 1000 --max 10")
@log.command()
@click.argument("name")
@click.option("--from", "first_id", type=click.IntRange(1), help="First id (default: the first of the log).")
@click.option("--max", "count", type=click.IntRange(0), help="Maximum number of messages.")
@click.option("--jsonl", is_flag=True, help="Print whole messages as JSON lines instead of bodies.")
@filter_options
@store_options
def read(
    settings: Settings,
    name: str,
    first_id: int | None,
    count: int | None,
    jsonl: bool,
    wanted: MessageFilter | None,
) -> None:
    """Print the bodies of the messages of the log NAME, in order, one per line.

    With filters it prints the messages that match all of them, and reports on standard error which ids it searched.
    Ids that were trimmed are reported there too.
    """
    with _ending_quietly(), _open(settings) as store:
        found = _log(store, name)
        if wanted is not None:
            print_matches(found, wanted, first_id, count, jsonl=jsonl)
            return
        first_id = first_id or found.first_id
        last_id = None if count is None else first_id + count - 1
        for batch in found.read(first_id, last_id, columns=None if jsonl else ["body"]):
            _print_batch(batch, jsonl)
        sys.stdout.buffer.flush()


@example("millstream log tail weather -n 5 --follow")
@log.command()
@click.argument("name")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(0), default=10, show_default=True, help="Number of messages."
)
@click.option("-f", "--follow", is_flag=True, help="Print new messages until interrupted.")
@click.option("--jsonl", is_flag=True, help="Print whole messages as JSON lines instead of bodies.")
@store_options
def tail(settings: Settings, name: str, count: int, follow: bool, jsonl: bool) -> None:
    """Print the bodies of the last messages of the log NAME, one per line."""
    columns = None if jsonl else ["body"]
    with _ending_quietly(), _open(settings) as store:
        found = _log(store, name)
        first_id = max(found.last_id - count + 1, found.first_id)
        for batch in found.follow(first_id, columns) if follow else found.read(first_id, columns=columns):
            _print_batch(batch, jsonl)
            sys.stdout.buffer.flush()


@example("millstream log seek weather --consumer report --time 2026-11-22T00:00:00Z")
@log.command()
@click.argument("name")
@click.option("--consumer", required=True, help="Name of the consumer.")
@click.option("--to", "first_id", type=click.IntRange(1), help="Id of the next message.")
@click.option(
    "--time", "time", help="Start at the first message received at or after this time: 2013-01-31T12:00Z, or µs."
)
@store_options
def seek(settings: Settings, name: str, consumer: str, first_id: int | None, time: str | None) -> None:
    """Set the position of a consumer of the log NAME to an id or a time. An open reader of it is fenced."""
    if (first_id is None) == (time is None):
        raise click.UsageError("give exactly one of --to ID and --time T")
    with open_log_store(settings.log_url, create=False) as store:
        found = _log(store, name)
        first_id = first_id or found.first_id_since(microseconds(time or ""))
        if first_id < found.first_id:
            raise InputError(
                f"cannot move the consumer to id {first_id}: log {name} was trimmed and begins at id "
                f"{found.first_id}; choose that id or a later one"
            )
        found.set_pointer(consumer, first_id - 1)
    record_change_if_node(settings, "seek", f"log {name}", consumer=consumer, next_id=first_id)
    click.echo(f"consumer {consumer} continues with id {first_id} of {name}")


@example("millstream log describe weather --json")
@log.command()
@click.argument("name")
@json_option
@store_options
def describe(settings: Settings, name: str, as_json: bool) -> None:
    """Show the size, ids, writer, consumers and retention of the log NAME."""
    with _open(settings) as store:
        opened = _log(store, name)
        found, policy = opened.info(), opened.retention
    rule = rule_for(name, settings.log.rules)
    if as_json:
        print_json({**msgspec.to_builtins(found), "retention": policy, "rule": None if rule is None else rule.log})
        return
    click.echo(f"{found.name}: {found.count:,} messages, ids {found.first_id} to {found.last_id}")
    click.echo(f"kind      {found.kind}")
    click.echo(f"stored    {size_text(found.bytes)} in {found.blocks:,} blocks, durable by {found.durability}")
    if found.tier is not None:
        tiered = f"{size_text(found.tier.bytes)} of it in {found.tier.objects:,} objects at {found.tier.url}"
        click.echo(f"tier      {tiered}, up to id {found.tier.last_id}")
    click.echo(f"trimmed   {_trimmed(found.kind, policy, rule)}")
    click.echo(f"writer    {found.writer or 'none'}")
    for consumer, pointer in found.consumers.items():
        click.echo(f"consumer  {consumer}: acknowledged up to {pointer}, {found.last_id - pointer:,} behind")


def _trimmed(kind: Kind, policy: Retention | None, rule: LogRule | None) -> str:
    """By what a log of this *kind* is trimmed that has this *policy* and is one of the logs of *rule*."""
    if policy is not None and policy.keep_all:
        return "never: its policy is to keep all"
    if rule is not None and rule.retention is not None:
        return f"by the rule for {rule.log!r} in the settings: {_limits(rule.retention)}"
    if policy is not None and policy != Retention():
        return f"by its own policy: {_limits(policy)}"
    if kind in SYSTEM_KINDS:
        return "by Millstream, which keeps it, where it needs no more of it"
    return "never: it has no policy, and no rule of the settings is for it"


def _limits(policy: Retention) -> str:
    said = {
        "max_age": None if policy.max_age is None else format_duration(policy.max_age),
        "max_bytes": None if policy.max_bytes is None else size_text(policy.max_bytes),
        "max_count": None if policy.max_count is None else f"{policy.max_count:,}",
        "cap_bytes": None if policy.cap_bytes is None else size_text(policy.cap_bytes),
    }
    limits = [f"{name} {value}" for name, value in said.items() if value is not None]
    return ", ".join([*limits, *(["keep_consumers"] if policy.keep_consumers else [])])


@example("millstream log list")
@log.command("list")
@json_option
@store_options
def list_logs(settings: Settings, as_json: bool) -> None:
    """List the logs."""
    with _open(settings) as store:
        for name in store.logs():
            found = _log(store, name).info()
            if as_json:
                print_json(found)
            else:
                click.echo(f"{found.count:>15,}  {size_text(found.bytes):>9}  {name}")


@example("millstream log verify weather --deep")
@log.command()
@click.argument("name")
@click.option("--deep", is_flag=True, help="Also read the tiered objects of older messages.")
@json_option
@store_options
def verify(settings: Settings, name: str, deep: bool, as_json: bool) -> int:
    """Verify every checksum of the log NAME, and that no id is missing. Exit code 1 if anything is wrong."""
    with _open(settings) as store:
        found = _log(store, name).verify(deep=deep)
    if as_json:
        print_json(found)
    else:
        for problem in found.problems:
            click.echo(problem, err=True)
        verdict = "ok" if found.ok else f"{len(found.problems)} problems"
        objects = f", {found.objects:,} objects {'read' if deep else 'seen'}" if found.objects else ""
        click.echo(f"{name}: {found.messages:,} messages in {found.blocks:,} blocks checked{objects}: {verdict}")
    return 0 if found.ok else 1


@example("millstream log copy sqlite:///old/log.db segments:///srv/new weather --consumers")
@log.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("name")
@click.option("--bodies", is_flag=True, help="Copy only the bodies, into a store without other fields (layout=nerve).")
@click.option("--consumers", is_flag=True, help="Also copy the positions of consumers.")
@json_option
def copy(source: str, target: str, name: str, bodies: bool, consumers: bool, as_json: bool) -> None:
    """Copy the log NAME between two stores, such as sqlite:///log.db and segments:///folder.

    Ids, times and headers are kept, and every batch is read back and compared. The same command resumes an interrupted
    copy, and adds messages that were written since. Messages of a store without times (mysql://…?layout=nerve) get the
    time of the copy.
    """
    with open_log_store(source, read_only=True) as old, open_log_store(target) as new:
        found = _log(old, name)
        made = new.log_to_copy(found)
        done = copy_log(found, made, bodies_only=bodies)
        if consumers:
            copy_consumers(found, made)
    if as_json:
        print_json(done)
    elif done.messages:
        click.echo(f"{name}: {done.messages:,} messages copied and compared, ids {done.first_id} to {done.last_id}")
    else:
        click.echo(f"{name}: nothing to copy, the copy has all {done.last_id:,} messages")


log.add_command(tier)
log.add_command(trim)
log.add_command(upkeep)


def _print_batch(batch: Batch, jsonl: bool) -> None:
    if isinstance(batch, Gap):
        click.echo(f"ids {batch.first_id} to {batch.last_id} were trimmed", err=True)
        return
    lines = map(encode_line, batch) if jsonl else batch.arrow.column("body").to_pylist()
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")


@contextlib.contextmanager
def _ending_quietly() -> Iterator[None]:
    """The reader of the output may stop reading: that is not a failure."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open(settings: Settings) -> LogStore:
    return open_log_store(settings.log_url, read_only=True)


def _log(store: LogStore, name: str) -> Log:
    return store.log(LogSpec(name), create=False)


def _append_file(writer: Writer, file: Path, jsonl: bool) -> None:
    handle = sys.stdin.fileno() if file == Path("-") else os.open(file, os.O_RDONLY)
    number = 1
    try:
        for lines in _runs_of_lines(handle):
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
                messages.append(decode_line(line, written=True))
            number += 1
    except MessageError as error:
        _append(writer, messages)
        where = "standard input" if file == Path("-") else str(file)
        raise InputError(f"{where}, line {number}: {error}. {_how_to_continue(number)}") from error
    _append(writer, messages)


def _how_to_continue(number: int) -> str:
    """What to do about the invalid line *number* (from 1)."""
    if number == 1:
        return "Nothing is stored: fix line 1, and append again"
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
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ConfirmationLostError(
            f"the pipe that receives the confirmations was closed: all messages up to id {ids.last} are "
            "stored, none after it; append the rest again"
        ) from error


def _runs_of_lines(handle: int) -> Iterator[list[bytes]]:
    """Whole lines, without their ends, as many as are there; the last one may lack its end."""
    rest = b""
    while chunk := _ready_bytes(handle):
        *lines, tail = chunk.split(b"\n")
        if lines:
            yield [rest + lines[0], *lines[1:]]
            rest = b""
        rest += tail
        if len(rest) > _LONGEST:
            raise InputError(
                f"the line is longer than {_LONGEST:,} bytes, the limit of a message: store its content as "
                "a content item"
            )
    if rest:
        yield [rest]


def _ready_bytes(handle: int) -> bytes:
    """What can be read: waits for the first byte, not for more. Empty at the end."""
    chunks = [os.read(handle, 1 << 20)]
    size = len(chunks[0])
    while chunks[-1] and size < _GATHER and select.select([handle], [], [], 0)[0]:
        chunks.append(os.read(handle, 1 << 20))
        size += len(chunks[-1])
    return b"".join(chunks)
