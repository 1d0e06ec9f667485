"""``millstream mill work``: pools of workers on the queues of the mill."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

import click
import msgspec

from millstream.cli.common import data_options, json_option, log_options
from millstream.cli.examples import example
from millstream.cli.mill.processes_option import processes_option
from millstream.cli.producer_threads import running_producers
from millstream.cli.queue_draining import WorkStatus, print_tally
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.threads import join_within
from millstream.mill.tasks import QueueName
from millstream.mill.workers.manager import WorkerManager, WorkTally
from millstream.mill.workers.monitor import QueueMonitor, serve_metrics
from millstream.mill.workers.pools import ALL, queues_of
from millstream.node import Node
from millstream.settings import Settings

_LOOK = 0.5
"""Seconds between wake-ups of the main thread: Python handles signals only in that thread."""

_STOP_SECONDS = 10.0
"""For so long the end of the process waits for an alarm that is being sent, or for queues that are being read."""

_log = logging.getLogger(__name__)


@example("millstream mill work --produce")
@click.command()
@click.argument("queues", nargs=-1, type=click.Choice([name.value for name in QueueName]), metavar="[QUEUES]...")
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME", help="Run this pool of workers (setting mill.pools); repeatable."
)
@click.option("--produce", is_flag=True, help="Also run the looping producers (see `millstream mill produce`).")
@click.option("--drain", is_flag=True, help="Exit when no task is left.")
@click.option(
    "--monitor",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve queue metrics on this port; 0: a free port.",
)
@data_options
@processes_option
@log_options
@json_option
def work(
    settings: Settings,
    queues: Sequence[str],
    pools: Sequence[str],
    produce: bool,
    drain: bool,
    port: int | None,
    as_json: bool,
) -> int:
    """Process tasks until stopped; the first queue has priority. At SIGTERM, running tasks are finished; a second
    SIGTERM ends the process at once.

    QUEUES are of duplication-high, duplication-low, bit-integrity, bit-error, bit-report, audit, repair and
    storage-statistics. Without them, pools of workers run, each with its own queues in its own order; without --pool,
    one pool works on all queues. Alarms about dead letters and long queues are sent to the recipients in the settings
    (mill.alarms). With --monitor, http://127.0.0.1:PORT/workers returns the recommended workers of each queue as JSON,
    and /metrics the same for Prometheus. Exit code 1 if a task failed for good: at its third attempt, or with a
    permanent error. If the node's tables are on a database server, the process is a member of the node, unless it ends
    with --drain.
    """
    if queues and pools:
        raise click.UsageError("QUEUES and --pool cannot be combined: give one of them")
    chosen = (
        {"queues": tuple(map(QueueName, queues))}
        if queues
        else {name: queues_of(name, settings.mill.pools) for name in pools or (ALL,)}
    )
    names = tuple(dict.fromkeys(name for each in chosen.values() for name in each))
    with Node.open(settings) as node, WorkStatus() as status:
        managers = dict[str, WorkerManager]()

        def show(pool: str, tally: WorkTally) -> None:
            status.show(pool, tally)
            wake_others(managers, but=pool)

        for pool, each in chosen.items():
            managers[pool] = node.mill.workers(*each, on_progress=functools.partial(show, pool))
        stop_on_signals(lambda: stop_all(managers))
        for pool, each in chosen.items():
            _log.info("working on %s%s", ", ".join(each), f" (pool {pool})" if pools else "")
        _log.info("stop with Ctrl-C or SIGTERM")
        loops = (
            running_producers(node, lambda: wake_others(managers), _log.info) if produce else contextlib.nullcontext()
        )
        joined = _joined(node, names, stays=not drain)  # now, as a signal lets it leave in order
        with joined, watching(monitor_of(node, names, stays=not drain), port), loops:
            tally = run_pools(managers, drain)
    print_tally(tally, as_json)
    return 1 if tally.dead else 0


def _joined(node: Node, names: Sequence[QueueName], *, stays: bool) -> AbstractContextManager[None]:
    """This process, whose workers work on the queues *names*, as a member of *node*, if it *stays*."""
    return node.databases.members.joined_worker(names) if stays else contextlib.nullcontext()


def monitor_of(node: Node, names: Sequence[QueueName], *, stays: bool = True) -> QueueMonitor:
    """Monitors the queues *names*; also the node, if the settings have receivers of alarms and no console runs.

    A process that does not stay reports only its queues: it cannot know earlier alarms of the node.
    """
    if not (stays and node.settings.mill.alarms.tells_somebody):
        return node.mill.monitor(*names)
    from millstream.status.verdict.alarms import unwatched_alarms

    return node.mill.monitor(*names, others=unwatched_alarms(node))


def stop_all(managers: Mapping[str, WorkerManager]) -> None:
    """Let all workers finish the tasks that run, and end."""
    for manager in managers.values():
        manager.stop()


def wake_others(managers: Mapping[str, WorkerManager], but: str = "") -> None:
    """Wake the other workers because there may be tasks; otherwise they sleep for minutes."""
    for pool, manager in managers.items():
        if pool != but:
            manager.wake()


def run_pools(managers: Mapping[str, WorkerManager], drain: bool) -> WorkTally:
    """Run all workers; if one fails, the others finish their tasks and end, and its error is raised."""

    def work_of(manager: WorkerManager) -> WorkTally:
        try:
            return manager.run_until_drained() if drain else manager.run()
        except BaseException:
            stop_all(managers)
            raise

    with ThreadPoolExecutor(len(managers), thread_name_prefix="mill-pool") as pool:
        futures = [pool.submit(work_of, manager) for manager in managers.values()]
        while wait(futures, _LOOK).not_done:
            pass
    tallies = [msgspec.structs.astuple(future.result()) for future in futures]
    return WorkTally(*(functools.reduce(operator.add, column) for column in zip(*tallies, strict=True)))


@contextlib.contextmanager
def watching(monitor: QueueMonitor, port: int | None) -> Iterator[None]:
    """Monitor the queues for the length of the block, and serve the metrics if a *port* is given."""
    server = None if port is None else serve_metrics(monitor.count, "127.0.0.1", port)
    threads = [threading.Thread(target=monitor.run, name="mill-monitor", daemon=True)]
    if server is not None:
        _log.info("metrics at http://127.0.0.1:%s/workers and /metrics", server.server_port)
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
        if late := join_within(_STOP_SECONDS, threads):
            _log.warning("alarms and metrics are still being worked on and are not waited for: %s", ", ".join(late))
