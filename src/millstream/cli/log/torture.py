"""``millstream log torture``: the crash test, on the disk or database of the user."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from millstream.cli.common import is_terminal, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.parameter_types import Seconds
from millstream.core.amounts import counted
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.testing.services import Server
    from millstream.testing.torture import TorturePlan, TortureReport


@example("millstream log torture --kills 20 --seconds 60")
@click.command("torture")
@click.option("--kills", type=click.IntRange(1), default=20, show_default=True, help="Number of processes to kill.")
@click.option("--seconds", type=Seconds(0.001), help="Maximum run time, such as 60s (default: no limit).")
@click.option(
    "--ahead",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Append requests of a writer that may be unconfirmed when it sends the next one.",
)
@click.option("--seed", type=click.IntRange(0), help="Repeat the random choices of the run that printed this seed.")
@click.option("--private", "server", metavar="NAME", help="Start a private database server (mariadb), and kill it too.")
@click.option("--keep", is_flag=True, help="Keep the store of the test; not with --private.")
@json_option
@store_options
def torture_command(
    settings: Settings,
    kills: int,
    seconds: float | None,
    ahead: int,
    seed: int | None,
    server: str | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Kill writers and readers at random moments, and verify that nothing is lost.

    It creates its own store beside --store, on the same disk or server, and removes it afterwards; existing logs are
    not touched. After every kill it verifies that confirmed messages are stored, ids are dense, checksums match,
    nothing is stored twice, and acknowledged messages are not redelivered, except those of the last moments before the
    kill (the window that --json prints, in seconds). If a check fails, the store is kept and the exit code is 1.
    """
    from millstream.testing import services
    from millstream.testing.torture import TorturePlan

    if keep and server:
        raise click.UsageError(
            "--keep and --private cannot be combined, because the private server stops with the command: omit one"
        )
    plan = TorturePlan(kills, seconds, secrets.randbits(32) if seed is None else seed, ahead)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(services.private(server)) if server else None
        url = f"{running.url}torture" if running else settings.log_url
        report = _torture_beside(url, plan, running, keep)
    print_json(report) if as_json else _print(report)
    return 0 if report.ok else 1


def _torture_beside(url: str, plan: TorturePlan, server: Server | None, keep: bool) -> TortureReport:
    from millstream.testing.torture import scratch_beside, torture

    scratch = scratch_beside(url, f"millstream-torture-{plan.seed:08x}")
    report = None
    try:
        with _progress(plan) as tell:
            report = torture(scratch, plan, server=server, tell=tell)
        return report
    finally:
        if server is None and not keep and (report is None or report.ok):
            scratch.remove()


@contextlib.contextmanager
def _progress(plan: TorturePlan) -> Iterator[Callable[[int], None]]:
    """A progress bar that counts kills."""
    if not is_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("killing", total=plan.kills)
        yield lambda kills: progress.update(task, completed=kills)


def _print(report: TortureReport) -> None:
    for problem in report.problems:
        click.echo(problem, err=True)
    killed = f"{report.writers_killed} writers, {report.readers_killed} readers, {report.databases_killed} databases"
    click.echo(f"store      {report.store}, seed {report.seed}, {report.seconds:.0f} seconds")
    click.echo(f"killed     {killed}")
    click.echo(
        f"confirmed  {counted(report.packs_confirmed, 'pack')}; stored {counted(report.messages_stored, 'message')}"
    )
    click.echo(f"delivered  {report.messages_delivered:,}, after a kill at most {report.redelivered_most:,} again")
    kept = "" if report.ok else "; the store is kept as it is, unless the server was a private one"
    click.echo(f"result     {'nothing was lost' if report.ok else counted(len(report.problems), 'problem')}{kept}")
