"""``millstream batch explain`` and ``millstream batch shrink``."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO, TextIO

import click
import msgspec

from millstream.batching import BatchConfig
from millstream.batching.counterexample import BatchMembership, smallest_counterexample
from millstream.batching.explain import NUMBERS, ExplanationFormat, explain
from millstream.batching.json_lines import LONGEST_LINE, read_events
from millstream.cli.batch_rules import cap_options, given_rules, late_options, rule_options
from millstream.cli.examples import example
from millstream.core.amounts import format_duration
from millstream.core.timestamps import format_timestamp


def _moment(microseconds: int) -> str:
    try:
        return format_timestamp(microseconds)
    except OverflowError:
        return f"{microseconds} us"


def _span(microseconds: int) -> str:
    return f"-{format_duration(-microseconds)}" if microseconds < 0 else format_duration(microseconds)


_MICROSECONDS = ExplanationFormat(_moment, _span)

file_argument = click.argument("file", type=click.File("rb"), default="-")


@example("millstream batch explain --window 1200000000 --max-delay 3600000000 events.jsonl")
@click.command("explain")
@file_argument
@rule_options(cut="at_event")
@cap_options
@late_options
def explain_command(*, file: BinaryIO, overrides: TextIO | None, **given: Any) -> None:
    """Explain why each batch of FILE's events began and ended, and which rule rejected each of the others.

    Prints one JSON line per batch, by source and start, then one per rejected event; "why" has the reason in words. For
    a late event max_delay (or grace), and for a future one leap, is the smallest value that would put it into a batch.
    FILE may also be the output of `millstream log read LOG --jsonl`; rules are in microseconds then, and the
    explanation has dates and durations.
    """
    rules = given_rules(overrides, given)
    first = file.readline(LONGEST_LINE + 1)
    events = [event for _, event in read_events(_RewoundFile(first, file), sized=rules.needs_sizes)]
    for story in explain(events, rules, _MICROSECONDS if b'"body' in first else NUMBERS):
        _print(story)


class _RewoundFile:
    """*file*, of which the line *first* was read already, from that line on."""

    def __init__(self, first: bytes, file: BinaryIO) -> None:
        self._first, self._file = first, file

    def readline(self, size: int = -1, /) -> bytes:
        line, self._first = self._first, b""
        return line or self._file.readline(size)


@example("millstream batch shrink --window 1200000000 --max-delay 3600000000 events.jsonl")
@click.command("shrink")
@file_argument
@rule_options(cut="midpoint")
def shrink_command(*, file: BinaryIO, **rules: Any) -> int:
    """Print the smallest part of FILE's events that the mode faithful groups differently because of delays.

    The lines are in order of receipt and can be passed to `millstream batch` again; standard error shows the batches of
    either mode, and those of faithful without delays. Late and future events do not count. Exit code 1 if the order of
    arrival makes no difference.
    """
    found = smallest_counterexample([event for _, event in read_events(file)], BatchConfig(**rules))
    if found is None:
        click.echo("the order in which these events were received makes no difference to the mode faithful", err=True)
        return 1
    for event in found.events:
        _print(event)
    for what, made in (
        ("faithful, as received", found.faithful),
        ("faithful, without delays", found.prompt),
        ("order-free, in any order", found.order_free),
    ):
        click.echo(f"{what + ':':<33}{_text(made)}", err=True)
    return 0


def _text(grouping: BatchMembership) -> str:
    return " ".join(f"{{{', '.join(map(str, members))}}}" for members in grouping) or "nothing"


def _print(item: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")
    sys.stdout.buffer.flush()
