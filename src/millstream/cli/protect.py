"""``millstream protect``: make verified copies of a folder or bucket that other programs write."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from millstream.cli.common import config_option, data_option, is_terminal, json_option
from millstream.cli.examples import example
from millstream.cli.parameter_types import Duration
from millstream.cli.progress import drawn
from millstream.cli.protect_parts import alone, checksums_option, protection_parts, read_list
from millstream.cli.protect_report import print_plan, print_protection
from millstream.cli.protect_setup import Setup, Stores, Wanted, find_stores, set_up, wanted
from millstream.cli.repeated_runs import run_repeatedly
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.amounts import format_duration
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.errors import NotFoundError
from millstream.core.interpreter import collecting_seldom
from millstream.core.sqlite_file import require_database
from millstream.mill.adoption.adopter import ReadExtent
from millstream.mill.adoption.adoption_run import AdoptionSummary
from millstream.mill.adoption.checksum_files import ChecksumList
from millstream.mill.adoption.deletions import Deletions
from millstream.mill.adoption.dry_run import DryRun, ProtectionPlan
from millstream.mill.adoption.protection import Progress, Protection, ProtectionReport
from millstream.mill.adoption.sources import count_bytes
from millstream.mill.duplication.change_guard import ChangeBudgets
from millstream.node import DATABASE, Node
from millstream.node.databases import TABLES
from millstream.settings import Settings, load_settings
from millstream.stores import MemoryStore, Store, StoreError, StoreUnavailableError, open_provider


@example("millstream protect ~/photos --to /mnt/disk --to s3://bucket/copies")
@click.command()
@click.argument("source")
@click.option("--to", required=True, multiple=True, metavar="URL", help="Folder or store URL for a copy; repeatable.")
@click.option("--space", metavar="NAME", help="Name of the space (default: the last part of SOURCE).")
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Exclude matching files, such as '*.tmp', in this run and later ones; repeatable.",
)
@click.option("--no-exclude", is_flag=True, help="Exclude nothing, in this run and later ones.")
@checksums_option
@click.option("--read", "read_all", type=click.Choice(["all"]), help="Read every item and every copy again.")
@click.option(
    "--deletions",
    type=click.Choice([one.value for one in Deletions]),
    help="Keep (hold) or delete (follow) the copies of originals that vanish, in this run and later ones (default: as "
    "in the last run; at first hold).",
)
@click.option("--replace", is_flag=True, help="Replace items of a copy that differ and that this node did not write.")
@click.option("--allow-empty", is_flag=True, help="Accept a new source that is empty.")
@click.option("--dry-run", is_flag=True, help="Show what a run would do and what was not read; change nothing.")
@click.option("--watch", is_flag=True, help="Repeat the run until Ctrl-C or SIGTERM.")
@click.option("--every", type=Duration(), default="10m", show_default=True, help="With --watch: pause between runs.")
@data_option
@config_option
@json_option
def protect(
    source: str,
    *,
    to: Sequence[str],
    space: str | None,
    exclude: Sequence[str],
    no_exclude: bool,
    checksums: Path | None,
    read_all: str | None,
    deletions: str | None,
    replace: bool,
    allow_empty: bool,
    dry_run: bool,
    watch: bool,
    every: int,
    data: str | None,
    config: Path | None,
    as_json: bool,
) -> int:
    """Copy SOURCE, a folder or s3://bucket/prefix, to each URL, and verify every copy by its bytes.

    The first run creates the node's folder, the stores, a space and its policy. Each run reads and copies new and
    changed files, and reads a part of the others again, so that everything is read within 30 days. Nothing is ever
    written to SOURCE. If an original vanishes, its copies are deleted only with --deletions follow, or after you record
    the deletion (`millstream mill forget`).

    Exit code 0 if every item has all its copies verified, 5 if only approvals are missing, 1 if there is another
    problem, 4 if another run is active on the node.
    """
    if watch and dry_run:
        raise click.UsageError("--watch and --dry-run cannot be combined: give one of them")
    if watch and every < MICROSECONDS:
        raise click.UsageError(f"--every must be at least 1 s, not {format_duration(every)}")
    if exclude and no_exclude:
        raise click.UsageError("--exclude and --no-exclude cannot be combined: give one of them")
    settings, _ = load_settings({"data": data}, config=config)
    asked = wanted(source, to, space, () if no_exclude else tuple(exclude) or None, settings.folder)
    listed = read_list(checksums, asked.source) if checksums is not None else None
    if dry_run:
        stores = find_stores(settings, asked, allow_empty=allow_empty)
        plan = _plan(settings, asked, stores, listed, read_all=bool(read_all), deletions=deletions)
        print_plan(plan, as_json)
        return plan.exit_code
    setup = set_up(settings, config, asked, allow_empty=allow_empty)
    clock = SystemClock()

    def run() -> int:
        report = _run(setup, listed, read_all=bool(read_all), deletions=deletions, replace=replace)
        print_protection(report, as_json, clock.now())
        return report.exit_code

    return run_repeatedly(run, every, clock, stop_on_signals()) if watch else run()


def _run(
    setup: Setup, listed: ChecksumList | None, *, read_all: bool, deletions: str | None, replace: bool
) -> ProtectionReport:
    """One run, alone on its node."""
    settings = setup.settings
    with collecting_seldom(), Node.open(settings, create=True) as node, alone(node):
        parts = protection_parts(node, setup.store)
        if deletions is not None:
            known = parts.target.catalog.space(setup.store, setup.space)
            parts.target.catalog.save_space(msgspec.structs.replace(known, deletions=deletions))
        reading = ReadExtent.ALL if read_all else ReadExtent.SHARE
        protection = Protection(parts, setup.space, setup.destinations, threads=settings.mill.workers)
        adopted_before = parts.target.catalog.totals(setup.store, setup.space).bytes
        with _progress(adopted_before, lambda: count_bytes(parts.target.source, setup.space)) as progress:
            return protection.run(progress, reading=reading, checksums=listed, replace=replace)


def _plan(
    settings: Settings,
    asked: Wanted,
    stores: Stores,
    listed: ChecksumList | None,
    *,
    read_all: bool,
    deletions: str | None,
) -> ProtectionPlan:
    """The plan of a run; nothing is set up."""
    require_database(settings.folder / DATABASE, TABLES)
    limits = settings.mill.change_guard
    copies = {
        name: _present(stores.added.get(name) or settings.store_urls[name], asked.space, is_new=name in stores.added)
        for name in stores.destinations
    }
    with tempfile.TemporaryDirectory(prefix="millstream-plan-") as scratch:
        database = settings.folder / DATABASE
        if settings.node.database:
            database = _copy_tables(settings, Path(scratch) / DATABASE)
        run = DryRun(
            open_provider(stores.url),
            stores.source,
            copies,
            database=database,
            scratch=Path(scratch),
            clock=SystemClock(),
            budgets=ChangeBudgets(limits.deletes, limits.changes, limits.least, limits.window, limits.approval),
            audited=[name for name, store in settings.stores.items() if store.audited],
        )
        reading = ReadExtent.ALL if read_all else ReadExtent.NONE
        threads = settings.mill.workers
        return run.plan(asked.space, reading=reading, checksums=listed, deletions=deletions, threads=threads)


def _copy_tables(settings: Settings, path: Path) -> Path:
    """Copy the node's tables from the server into the file *path*."""
    from millstream.cli.node_tables import node_tables
    from millstream.core.sqlite_file import open_database
    from millstream.node.databases import open_tables
    from millstream.node.moving import copy_tables

    copy = open_database(path, TABLES)
    try:
        with open_tables(settings, settings.node.database) as source:
            copy_tables(source, copy, node_tables())
    finally:
        copy.dispose()
    return path


def _present(url: str, space: str, *, is_new: bool) -> tuple[str, Store]:
    """The *url* and its store, or an empty one where it will be made."""
    store = open_provider(url)
    if not is_new:
        return url, store
    try:
        store.has_space(space)
    except (NotFoundError, StoreUnavailableError):
        return url, MemoryStore()
    return url, store


def _tell_total(bars: Bars, task: TaskID, count: Callable[[], int]) -> None:
    with contextlib.suppress(StoreError):  # the reader of the source reports the error
        bars.update(task, total=count())


@contextlib.contextmanager
def _progress(known: int, count: Callable[[], int]) -> Iterator[Progress]:
    """Bars on a terminal: bytes read with their rate and the time that is left, then copies verified.

    *known* bytes were there before; where that is nothing, *count* tells while they are read how many there are.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        drawn(*columns, TimeRemainingColumn()) as bars,
        drawn(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as counts,
    ):
        adopting = bars.add_task("reading the source", total=known or None)
        if not known and is_terminal():
            threading.Thread(target=_tell_total, args=(bars, adopting, count), daemon=True).start()
        verifying: dict[str, TaskID] = {}

        def adopted(summary: AdoptionSummary) -> None:
            bars.update(adopting, completed=summary.bytes)

        def verified(store: str, done: int, total: int) -> None:
            if store not in verifying:
                verifying[store] = counts.add_task(f"verifying {store}", total=total)
            counts.advance(verifying[store], done)

        yield Progress(adopted, bars.stop, verified)
