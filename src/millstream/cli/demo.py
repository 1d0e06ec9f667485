"""``millstream demo``: all steps on real data."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from millstream.cli.common import data_options, is_terminal, json_option, print_json, used_settings_file
from millstream.cli.examples import example
from millstream.core.clock import SystemClock
from millstream.core.durable import write_durably
from millstream.demo.arrivals import arrivals_of
from millstream.demo.delivery import DeliveryModel
from millstream.demo.errors import NotADemoError
from millstream.demo.plan import PLAN_FILE, DemoPlan
from millstream.demo.process_lock import locked_folder
from millstream.demo.progress import BarProgress, PlainProgress, ProgressReporter
from millstream.demo.runner import DemoRun, run_stages
from millstream.demo.stages import stages_of
from millstream.demo.stages.copies import COPIES, PRIMARY
from millstream.demo.summary import Summary, print_summary, write_page
from millstream.demo.userfile import UserRecords, read_records
from millstream.log import LogNotFoundError
from millstream.node import Node
from millstream.node.context import is_node
from millstream.pipeline.gateway import spark_home
from millstream.settings import FILE_NAME, PRIMARY_URL, Settings, SettingsError, StoreSettings
from millstream.stores import hash_stream

DEMO_FOLDER = "demo"
"""The folder, in the data folder, of the demo's own records."""


@example("millstream demo")
@click.command()
@data_options
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Number of weather records, or of records of --input, to take (default: all).",
)
@click.option(
    "--input",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use your own records: a file in .jsonl, .csv or .parquet (default: weather and flights of New York in 2013).",
)
@click.option(
    "--seed", default=2013, show_default=True, help="Seed of the random delays, late records and repeated records."
)
@click.option(
    "--late",
    default=0.02,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of records that are later than allowed: 0.02 is 2 %.",
)
@click.option(
    "--twice",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of records that are sent twice: 0.01 is 1 %.",
)
@json_option
def demo(
    settings: Settings, limit: int | None, path: Path | None, seed: int, late: float, twice: float, as_json: bool
) -> None:
    """Run all steps on real data, from records to proofs, and print the results.

    Records are ingested, batched by event time, anchored, copied to two more stores and checked; one copy is damaged on
    purpose, found and repaired; one message is proven. The data stays in its folder. An interrupted run resumes with
    the same command.
    """
    spark_home()  # says that PySpark is missing before anything is made
    records = read_records(path, limit) if path else None
    delivery = DeliveryModel(settings.batching.max_delay, late, twice, seed)
    plan = DemoPlan(
        settings.batching.window, settings.batching.conflict_cut, delivery, limit, _hash(path), flights=path is None
    )
    settings = _with_stores(settings)
    _require_own_node(settings, plan)
    with Node.open(settings, create=True) as node, locked_folder(settings.folder / DEMO_FOLDER) as folder:
        plan = plan.keep(folder)
        _keep_settings(settings)
        if records is not None:
            _put_aside(folder, records)
        reporter = BarProgress(Console(stderr=True)) if is_terminal() and not as_json else PlainProgress()
        summary = _run_demo(node, plan, records, folder, reporter)
    write_page(summary, Path(summary.report))
    if as_json:
        print_json(summary.to_json())
    else:
        print_summary(summary, Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120))


def _require_own_node(settings: Settings, plan: DemoPlan) -> None:
    """Raise :class:`NotADemoError` where the demo would write into a node, a database or logs that it did not make."""
    is_made = is_node(settings.folder)  # asked first: a demo that another process begins now has its plan before that
    if (settings.folder / DEMO_FOLDER / PLAN_FILE).exists():
        return
    if is_made:
        used = f"{settings.folder} is the folder of a node that the demo did not create"
    elif (in_use := _used_elsewhere(settings, plan)) is not None:
        used = in_use
    else:
        return
    raise NotADemoError(f"{used}, and the demo would change it: choose a new folder with --data, and no other settings")


def _used_elsewhere(settings: Settings, plan: DemoPlan) -> str | None:
    """What is in use outside of the data folder, where the settings name it."""
    from millstream.node.databases import has_database
    from millstream.node.logs import open_to_read

    if settings.node.database and has_database(settings):
        return "the setting node.database names the database of a node"
    if settings.log.store:
        with contextlib.suppress(LogNotFoundError), open_to_read(settings, SystemClock()) as store:
            if there := next(filter(store.has, plan.logs), None):
                return f"the setting log.store names a log store with a log {there!r}"
    return None


def _run_demo(
    node: Node, plan: DemoPlan, records: UserRecords | None, folder: Path, reporter: ProgressReporter
) -> Summary:
    try:
        with DemoRun(node, plan, folder, reporter) as demo_run:
            figures = run_stages(stages_of(arrivals_of(plan, records)), demo_run, reporter)
    finally:
        reporter.close()
    bad = len(records.bad) if records is not None else 0
    return Summary(str(node.folder), plan, figures, bad, str(node.folder / "report.html"))


def _with_stores(settings: Settings) -> Settings:
    """*settings* with three stores, unless the user has configured the stores that the demo needs.

    Raises :class:`SettingsError` where the settings are in a file of the user, which is not changed, and lacks them.
    """
    urls = {PRIMARY: PRIMARY_URL} | {name: f"file://{{data}}/stores/{name}" for name in COPIES}
    missing = [name for name in urls if name not in settings.stores]
    if missing and (path := used_settings_file()) != settings.folder / FILE_NAME:
        tables = "\n".join(f'[stores.{name}]\nurl = "{urls[name]}"' for name in missing)
        raise SettingsError(
            f"the settings file {path} lacks stores of the demo: leave it out (--config, MILLSTREAM_CONFIG), or add\n"
            f"{tables}"
        )
    stores = {name: StoreSettings(url) for name, url in urls.items()}
    return msgspec.structs.replace(settings, stores={**stores, **settings.stores})


def _keep_settings(settings: Settings) -> None:
    """Write the three stores into the settings file of the data folder, for later commands."""
    path = settings.folder / FILE_NAME
    if not path.exists():
        lines = [f'[stores.{name}]\nurl = "{store.url}"\n' for name, store in settings.stores.items()]
        write_durably(path, "\n".join(lines).encode("utf-8"))


def _put_aside(folder: Path, records: UserRecords) -> None:
    lines = [msgspec.json.encode(row) + b"\n" for row in records.bad]
    write_durably(folder / "put-aside.jsonl", b"".join(lines))


def _hash(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open("rb") as file:
        return hash_stream(file).sha256
