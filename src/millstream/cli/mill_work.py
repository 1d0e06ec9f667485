"""``millstream mill work``: workers on the queues of the mill."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

import click

from millstream.cli.common import data_options, json_option
from millstream.cli.mill_progress import print_tally
from millstream.mill.monitor import Monitor, serve_figures
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import Settings

WORK = (
    QueueName.AUDIT,
    QueueName.DUPLICATION_HIGH,
    QueueName.REPAIR,
    QueueName.DUPLICATION_LOW,
    QueueName.BIT_INTEGRITY,
)
"""The queues that ``mill work`` empties, in order of priority."""


@click.command()
@click.argument("queues", nargs=-1, type=click.Choice([name.value for name in QueueName]))
@click.option("--drain", is_flag=True, help="End when nothing is left to do.")
@click.option("--monitor", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve figures of the queues.")
@data_options
@json_option
def work(settings: Settings, queues: Sequence[str], drain: bool, port: int | None, as_json: bool) -> int:
    """Work on tasks, the first queue named before the second, until stopped (SIGTERM lets running tasks end).

    Meanwhile the queues are watched, and whom the settings name (mill.alarms) is told of dead letters and of too many
    tasks. With --monitor, http://127.0.0.1:PORT/workers says as JSON how many workers each queue should have, and
    /metrics the same to Prometheus.
    """
    with Node.open(settings) as node:
        names = [QueueName(name) for name in queues] or WORK
        manager = node.workers(*names)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: manager.stop())
        click.echo(f"working on {', '.join(names)}; stop with Ctrl-C or SIGTERM", err=True)
        with _watching(node.monitor(*names), port):
            tally = manager.run_until_drained() if drain else manager.run()
        print_tally(tally, as_json)
    return 1 if tally.dead else 0


@contextlib.contextmanager
def _watching(monitor: Monitor, port: int | None) -> Iterator[None]:
    """Watch the queues, and serve the figures where a *port* is given, for the length of the block."""
    server = None if port is None else serve_figures(lambda: monitor.figures, "127.0.0.1", port)
    threads = [threading.Thread(target=monitor.run, name="mill-monitor", daemon=True)]
    if server is not None:
        click.echo(f"figures at http://127.0.0.1:{server.server_port}/workers and /metrics", err=True)
        threads.append(threading.Thread(target=server.serve_forever, name="mill-figures", daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        monitor.stop()
        if server is not None:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
