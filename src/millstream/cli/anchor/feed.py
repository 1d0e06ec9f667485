"""``millstream anchor feed``: anchor the batches of a log of batches as they arrive."""

from __future__ import annotations

import click

from millstream.anchoring.feed import AnchorSchedule, FeedProgress
from millstream.cli.common import json_option, log_options, own_settings, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log_owners import claim_logs
from millstream.cli.parameter_types import Duration
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.amounts import counted
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings

PAUSE = 0.2
"""Seconds between checks whether an anchor is due."""


@example("millstream anchor feed weather weather.batches --every 30s")
@click.command("feed")
@click.argument("log")
@click.argument("batches", metavar="BATCHES")
@click.option("--once", is_flag=True, help="Anchor the existing batches, then exit.")
@click.option("--every", type=Duration(), default="1m", show_default=True, help="Interval between anchors.")
@json_option
@store_options
@log_options
def feed_command(settings: Settings, *, log: str, batches: str, once: bool, every: int, as_json: bool) -> None:
    """Anchor the batches that `batch serve` or `pipeline batch --stream` writes.

    They are in the log BATCHES, and were made from LOG. Each batch is anchored exactly once, also across
    interruptions. SIGTERM or Ctrl-C stops the command after it has anchored what it received.
    """
    stop = stop_on_signals()
    with Node.open(settings) as node:
        node.logs.store.log(LogSpec(log), create=False)  # a mistyped store gets no note
        claim_logs(node, own_settings(), log, batches)
        anchoring = AnchorSchedule(node.anchoring.feed(log, batches), node.clock, every)
        while not (once or stop()):
            done = anchoring.when_due()
            if done is None:
                node.clock.sleep(PAUSE)
            elif done != FeedProgress():
                print_handed(done, as_json=as_json)
        print_handed(anchoring.feed.step(force=True), as_json=as_json)


def print_handed(done: FeedProgress, *, as_json: bool) -> None:
    """Print what was *done*."""
    if as_json:
        print_json(done)
    else:
        click.echo(handed_text(done))


def handed_text(done: FeedProgress) -> str:
    """What was *done*, in one line."""
    return (
        f"{counted(done.batches, 'batch')} of {counted(done.messages, 'message')} handed over, "
        f"{done.rejects:,} rejected messages, "
        f"{counted(done.anchors, 'anchor')}"
    )
