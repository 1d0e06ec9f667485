"""``millstream queue``: the status of work queues, and their dead letters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import BinaryIO

import click

from millstream.cli.change_log import on_bare_store, record_change_if_node, require_audit_log
from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import body_members, echo_line, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.errors import NotFoundError
from millstream.log import Log, LogNotFoundError, LogStore
from millstream.mill.workers.scaling import recommended, scaling_of
from millstream.node import Node
from millstream.node.logs import open_to_read
from millstream.queue import (
    DeadTask,
    Depth,
    LogWorkQueue,
    UnknownQueueError,
    WorkQueue,
    queue_log,
    queues_on_logs,
    recover,
)
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store


@click.group(cls=SummaryGroup)
def queue() -> None:
    """Inspect work queues and their dead letters, on logs or on the broker in the settings (queue.broker).

    A dead letter, or dead task, is a task that failed at its last attempt, or with a permanent error. It stays in its
    queue, and is not retried automatically.
    """


@example("millstream queue depth")
@queue.command()
@click.argument("name", required=False)
@json_option
@store_options
def depth(settings: Settings, name: str | None, as_json: bool) -> None:
    """Show how many tasks of the queue NAME (or of every queue) are ready, leased, delayed and dead.

    A leased task is being processed by a worker, a delayed one becomes ready at a later time, a dead one failed for
    good. For a queue of the mill the command also shows the recommended number of workers (settings mill.scaling). It
    does not disturb workers.
    """
    if _is_on_broker(settings):
        with Node.open(settings, reads=True) as node:
            for each in [name] if name else node.queues.names_on_broker():
                _print_depth(settings, each, node.queues.open(each).depth(), as_json)
        return
    with open_to_read(settings, SystemClock()) as store:
        for each in [name] if name else queues_on_logs(store):
            state, _ = recover(_log_of(store, each))
            _print_depth(settings, each, state.depth(SystemClock().now()), as_json)


@example("millstream queue dead duplication-high --limit 10")
@queue.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number to list.")
@click.option(
    "--after", type=click.IntRange(0), default=0, show_default=True, help="Only tasks with ids above this one."
)
@json_option
@store_options
def dead(settings: Settings, name: str, limit: int, after: int, as_json: bool) -> None:
    """List the dead tasks of the queue NAME with their causes.

    A dead task failed at its last attempt, or with a permanent error.
    """
    for task in dead_tasks(settings, name, limit=limit, after=after):
        if as_json:
            facts = {"attempts": task.attempts, "cause": task.cause, "died_at": task.died_at}
            print_json({"task_id": task.task_id, **body_members(task.body), **facts})
        else:
            when = datetime.fromtimestamp(task.died_at / MICROSECONDS, UTC).isoformat(" ", "seconds")
            echo_line(f"{task.task_id}  {when}  after {task.attempts} attempts: {task.cause}")


@example("millstream queue redrive duplication-high --per-second 10")
@queue.command()
@click.argument("name")
@click.argument("task_ids", nargs=-1, type=int)
@click.option(
    "--per-second",
    type=click.FloatRange(0, min_open=True),
    metavar="RATE",
    help="Maximum tasks per second (default: all at once).",
)
@json_option
@store_options
def redrive(settings: Settings, name: str, task_ids: tuple[int, ...], per_second: float | None, as_json: bool) -> None:
    """Make dead tasks of the queue NAME ready again: those with TASK_IDS, or all of them.

    A dead task failed at its last attempt, or with a permanent error; its attempts are counted anew. With --per-second
    they become ready one after the other. The delays are stored in the queue, so no process has to keep running.
    """
    require_audit_log(settings)
    with _open(settings, name) as opened:
        count = opened.redrive(task_ids or None, per_second=per_second)
    record_change_if_node(settings, "redrive", f"queue {name}", tasks=count, per_second=per_second)
    if as_json:
        print_json({"queue": name, "redriven": count})
    else:
        click.echo(f"{name}: {counted(count, 'task')} ready again")


@example("millstream queue discard duplication-high 17 18")
@queue.command()
@click.argument("name")
@click.argument("task_ids", nargs=-1, type=int, required=True)
@json_option
@store_options
def discard(settings: Settings, name: str, task_ids: tuple[int, ...], as_json: bool) -> None:
    """Discard the dead tasks TASK_IDS of the queue NAME for good.

    A dead task failed at its last attempt, or with a permanent error. Ids of other tasks are ignored.
    """
    require_audit_log(settings)
    with _open(settings, name) as opened:
        count = opened.discard(task_ids)
    record_change_if_node(settings, "discard", f"queue {name}", tasks=count, task_ids=list(task_ids[:100]))
    if as_json:
        print_json({"queue": name, "discarded": count})
    else:
        click.echo(f"{name}: {counted(count, 'task')} discarded")


@example("millstream queue amend duplication-high 17 task.json")
@queue.command()
@click.argument("name")
@click.argument("task_id", type=click.IntRange(1))
@click.argument("file", type=click.File("rb"))
@json_option
@store_options
def amend(settings: Settings, name: str, task_id: int, file: BinaryIO, as_json: bool) -> None:
    """Replace the body of the dead task TASK_ID of the queue NAME by the bytes of FILE (- for standard input).

    The task stays dead, that is, it is not retried, until `millstream queue redrive` makes it ready. Exit code 3 if the
    queue has no such dead task.
    """
    body = file.read()
    require_audit_log(settings)
    with _open(settings, name) as opened:
        found = [task for task in opened.dead(limit=1, after=task_id - 1) if task.task_id == task_id]
        if not found or not opened.amend(task_id, body, seen=found[0].body):
            raise NotFoundError(f"queue {name} has no dead task {task_id}; `millstream queue dead {name}` lists them")
    record_change_if_node(settings, "amend", f"queue {name}, task {task_id}", bytes=len(body))
    if as_json:
        print_json({"queue": name, "task_id": task_id, "bytes": len(body)})
    else:
        click.echo(f"task {task_id} of {name} has another body of {len(body):,} bytes")


def _is_on_broker(settings: Settings) -> bool:
    return bool(settings.queue.broker) and not on_bare_store()


@contextlib.contextmanager
def _open(settings: Settings, name: str) -> Iterator[WorkQueue]:
    """The queue *name*, to be worked on."""
    if _is_on_broker(settings):
        with Node.open(settings) as node:
            yield node.queues.open(name)
        return
    with (
        open_log_store(settings.log_url, create=False) as store,
        LogWorkQueue(_log_of(store, name)) as opened,
    ):
        yield opened


def _log_of(store: LogStore, name: str) -> Log:
    """The log of the queue *name*. Raises :class:`UnknownQueueError`."""
    try:
        return store.log(queue_log(name), create=False)
    except LogNotFoundError as error:
        raise UnknownQueueError(name) from error


def dead_tasks(settings: Settings, name: str, *, limit: int, after: int = 0) -> Sequence[DeadTask]:
    """Up to *limit* dead tasks of the queue *name* with numbers above *after*; workers are not disturbed.

    Raises :class:`UnknownQueueError`.
    """
    if _is_on_broker(settings):
        with _open(settings, name) as opened:
            return opened.dead(limit=limit, after=after)
    with open_to_read(settings, SystemClock()) as store:
        state, _ = recover(_log_of(store, name))
    return state.dead(limit=limit, after=after)


def _print_depth(settings: Settings, name: str, depth: Depth, as_json: bool) -> None:
    counts = {"ready": depth.ready, "leased": depth.leased, "delayed": depth.delayed, "dead": depth.dead}
    workers = recommended({name: depth}, scaling_of(settings.mill.scaling)).get(name)
    if as_json:
        print_json({"queue": name, **counts, "desired_workers": workers, "exact": depth.exact, "as_of": depth.as_of})
    else:
        advice = "" if workers is None else f"  {workers} recommended {'worker' if workers == 1 else 'workers'}"
        click.echo(f"{name}  " + "  ".join(f"{count} {state}" for state, count in counts.items()) + advice)
