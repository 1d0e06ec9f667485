"""``millstream serve``: a node in the foreground."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.common import store_options
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.messaging.broker.endpoints import Place
    from millstream.node import Node


@click.command()
@click.option(
    "--broker", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Where RocketMQ clients find it."
)
@store_options
def serve(settings: Settings, broker: str) -> None:
    """Run a broker that RocketMQ 5 clients of any language use, until it is interrupted.

    Prints one line when it accepts calls. Topics are logs of the node: make them with `millstream topic create`. It
    listens on this machine alone unless told otherwise, and elsewhere only where the settings say who may do what
    (section broker: access keys, or an authority of clients' certificates). It moves and trims logs as the rules of
    the settings (log.rules), or those kept with them, say.
    """
    from millstream.messaging.broker.endpoints import read_place
    from millstream.node import Node

    place = read_place(broker)
    with Node.open(settings, create=True) as node, node.upkeep(_complain):
        asyncio.run(_serve(node, place))


async def _serve(node: Node, place: Place) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with node.broker(place) as server:
        print(f"broker ready on {place.host}:{server.port}", flush=True)
        await stop.wait()
        _complain("stopping")


def _complain(text: str) -> None:
    print(f"millstream: {text}", file=sys.stderr, flush=True)
