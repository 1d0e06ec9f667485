"""``millstream batch explain`` and ``millstream batch shrink``."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import click
import msgspec

from millstream.batching import BatchConfig
from millstream.batching.explain import explain
from millstream.batching.lines import read_events
from millstream.batching.shrink import Grouping, shrink
from millstream.cli.batch_rules import cap_options, rule_options

file_argument = click.argument("file", type=click.File("rb"), default="-")


@click.command("explain")
@file_argument
@rule_options(cut="at_event")
@cap_options
def explain_command(*, file: BinaryIO, max_bytes: int | None, **rules: Any) -> None:
    """Say why each batch of FILE's events began and ended, and which rule refused each of the others.

    One JSON line a batch, by source and start, then one a refused event; each has the reason in words as "why". For a
    late event max_delay, and for a future one leap, is the least value that would have kept it. FILE may also be what
    `millstream log read LOG --jsonl` prints; times and rules are microseconds then.
    """
    config = BatchConfig(max_bytes=max_bytes, **rules)
    events = [event for _, event in read_events(file, sized=max_bytes is not None)]
    for story in explain(events, config):
        _print(story)


@click.command("shrink")
@file_argument
@rule_options(cut="midpoint")
def shrink_command(*, file: BinaryIO, **rules: Any) -> int:
    """Print the smallest arrival of FILE's events that the mode faithful batches otherwise than order-free.

    The lines come in order of receipt and can be fed to `millstream batch` again; standard error says what each mode
    makes of them. Leaving away any one of them, or delivering any delayed one at once, makes the difference vanish.
    Exit code 1 where the modes agree on the whole input.
    """
    found = shrink([event for _, event in read_events(file)], BatchConfig(**rules))
    if found is None:
        click.echo("the modes agree on this input, in the order in which it was received", err=True)
        return 1
    for event in found.events:
        _print(event)
    click.echo(f"order-free: {_text(found.order_free)}\nfaithful:   {_text(found.faithful)}", err=True)
    return 0


def _text(grouping: Grouping) -> str:
    return " ".join(f"{{{', '.join(map(str, members))}}}" for members in grouping) or "nothing"


def _print(item: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")
    sys.stdout.buffer.flush()
