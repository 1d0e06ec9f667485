"""``millstream mill produce``: run the looping producers, once for cron or repeatedly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.logging_setup import INTERRUPTED
from millstream.cli.mill.plan_printing import print_held
from millstream.cli.open_changes import print_open_changes
from millstream.cli.progress import progress_bar
from millstream.cli.repeated_runs import run_repeatedly
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock
from millstream.mill.producers.duplication import DuplicationProducer
from millstream.mill.producers.producer_loop import LoopOutcome, LoopRun, ProducerLoop
from millstream.mill.producers.space_filter import SpaceFilter, read_patterns
from millstream.node import Node
from millstream.settings import Settings, SettingsError

EXIT_CODES = {
    LoopOutcome.FAILED: 1,
    LoopOutcome.QUEUE_FULL: 10,
    LoopOutcome.NOT_DUE: 11,
    LoopOutcome.WAITING: 12,
    LoopOutcome.STOPPED: INTERRUPTED,
}
"""Exit codes of a run with ``--once``; other runs end with 0, or with 1 if a space failed."""


def producer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add to *command* the options of all producers."""
    path = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option("--once", is_flag=True, help="Make one run, for cron."),
        click.option(
            "--include", type=path, metavar="FILE", help="Only spaces that match a line of FILE, /account/store/space."
        ),
        click.option(
            "--exclude",
            type=path,
            metavar="FILE",
            help="Exclude spaces that match a line of FILE, /account/store/space.",
        ),
        data_options,
        json_option,
    ):
        command = option(command)
    return command


@click.group(cls=SummaryGroup)
def produce() -> None:
    """Put tasks for every space on the queues, one loop over all spaces at a time.

    A loop is one pass over all spaces; a producer is the program that makes it. Without --once a producer runs again
    after an interval, until it is stopped. With --once it makes one run and exits with 0 when its loop is complete, 10
    if the queue is full, 11 if no loop is due yet, 12 if workers must finish tasks first, and 1 if a space failed. The
    next run continues an incomplete loop. The intervals of runs and loops are in the settings (mill.produce).

    In the FILE of --include and --exclude, a line is /account/store/space; each part is a name, a prefix followed by *,
    or *. Parts at the end may be omitted.
    """


@example("millstream mill produce duplication --once --differences")
@produce.command()
@click.option(
    "--differences", is_flag=True, help="Queue only items that seem to differ, as with mill.produce.only_differences."
)
@producer_options
def duplication(
    settings: Settings, differences: bool, once: bool, include: Path | None, exclude: Path | None, as_json: bool
) -> int:
    """Put every item of every space of the policies on the queue duplication-low, deletions before copies.

    The plan of a space that would delete or replace too much is held (see `millstream mill approve`). Exit codes: see
    `millstream mill produce --help`.
    """
    spaces = _filter(include, exclude)
    with Node.open(settings) as node, _drawn() as draw:
        loop, producer = node.mill.producers.duplication(spaces, only_differences=differences, on_progress=draw)

        def tell() -> None:
            while producer.held:
                print_held(producer.held.pop(0), as_json)
            for line in left_out(producer):
                click.echo(line, err=True)

        every = settings.mill.produce.duplication_every
        return _make_runs(_run_of(loop, as_json, tell), node.clock, every, once=once)


@example("millstream mill produce bits --once")
@produce.command()
@producer_options
def bits(settings: Settings, once: bool, include: Path | None, exclude: Path | None, as_json: bool) -> int:
    """Put a check of every item of every space on the queue bit-integrity, and a report after the checks of a space.

    Exit codes: see `millstream mill produce --help`.
    """
    spaces = _filter(include, exclude)
    with Node.open(settings) as node, _drawn() as draw:
        loop = node.mill.producers.bits(spaces, on_progress=draw)
        return _make_runs(_run_of(loop, as_json), node.clock, settings.mill.produce.bits_every, once=once)


@example("millstream mill produce statistics --once")
@produce.command()
@producer_options
def statistics(settings: Settings, once: bool, include: Path | None, exclude: Path | None, as_json: bool) -> int:
    """Put a count of every space in the manifest on the queue storage-statistics.

    Exit codes: see `millstream mill produce --help`.
    """
    spaces = _filter(include, exclude)
    with Node.open(settings) as node, _drawn() as draw:
        loop = node.mill.producers.statistics(spaces, on_progress=draw)
        return _make_runs(_run_of(loop, as_json), node.clock, settings.mill.produce.statistics_every, once=once)


@example("millstream mill produce audit-log --once")
@produce.command()
@click.option("--once", is_flag=True, help="Make one run, for cron.")
@data_options
@json_option
def audit_log(settings: Settings, once: bool, as_json: bool) -> int:
    """Export the audit log to the space in the settings (mill.audit_log), as files of 10 MiB.

    It exports only events that no file there has: a file that was deleted is written again. Changes that no worker has
    processed yet are left to the next run. Exit code 1 if it is not known of a change whether it happened.
    """
    if settings.audit_log_space is None:
        raise SettingsError(
            "setting mill.audit_log is missing: set it to the STORE:SPACE that receives the exported audit log"
        )
    with Node.open(settings) as node:

        def run(stopping: Callable[[], bool]) -> int:
            assert node.mill.audit.export is not None
            done = node.mill.audit.export.run(stopping)
            print_json(done) if as_json else click.echo(
                f"{counted(done.events, 'event')} exported, {counted(done.files, 'file')} written"
            )
            return 1 if print_open_changes(node) else 0

        return _make_runs(run, node.clock, settings.mill.produce.audit_log_every, once=once)


def left_out(producer: DuplicationProducer) -> Iterator[str]:
    """A line for each pair of stores and each unfinished space that this run skipped; each is returned once."""
    while producer.skipped:
        yield f"{producer.skipped.pop(0)}: skipped, since a store of it is not configured"
    while producer.dropped:
        yield f"{producer.dropped.pop(0)}: left out, since the policy does not ask for it any more"


OneRun = Callable[[Callable[[], bool]], int]
"""Makes a run, unless a stop was requested; returns its exit code."""


def _run_of(loop: ProducerLoop[Any], as_json: bool, tell: Callable[[], None] = lambda: None) -> OneRun:
    def one_run(stopping: Callable[[], bool]) -> int:
        run = loop.run(stopping)
        tell()
        _print_run(run, as_json)
        return EXIT_CODES.get(run.outcome, 1 if run.failures else 0)

    return one_run


def _make_runs(run: OneRun, clock: Clock, every: int, *, once: bool) -> int:
    """Make one run, or one every *every* microseconds until stopped; the exit code."""
    stopping = stop_on_signals()
    if once:
        return run(stopping)
    run_repeatedly(lambda: run(stopping), every, clock, stopping)
    return 0


def _filter(include: Path | None, exclude: Path | None) -> SpaceFilter:
    return SpaceFilter(read_patterns(include) if include else (), read_patterns(exclude) if exclude else ())


@contextlib.contextmanager
def _drawn() -> Iterator[Callable[[LoopRun], None]]:
    """Show a bar of the finished spaces on a terminal; yields the function to call after each chunk."""
    with progress_bar() as progress:
        bar = progress.add_task("spaces", total=None)
        most = 0

        def draw(run: LoopRun) -> None:
            nonlocal most
            most = max(most, run.left)
            text = f"{counted(run.tasks, 'task')}; spaces"
            progress.update(bar, total=most, completed=most - run.left, description=text)

        yield draw


def _print_run(run: LoopRun, as_json: bool) -> None:
    if as_json:
        print_json({name: value for name, value in msgspec.to_builtins(run).items() if value not in ([], None)})
        return
    for failure in run.failures:
        echo_line(f"{failure.what}: {failure.error}", err=True)
    due = ""
    if run.next_at is not None:
        due = f"; the next loop is due {datetime.fromtimestamp(run.next_at / MICROSECONDS, UTC):%Y-%m-%d %H:%M} UTC"
    click.echo(
        f"{run.outcome.value}: {counted(run.tasks, 'task')} put on the queue, {counted(run.left, 'space')} left{due}"
    )
