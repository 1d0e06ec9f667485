"""``millstream pipeline``: the jobs that run on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill_spaces import asked_spaces
from millstream.cli.parameter_types import Duration, SizeType
from millstream.cli.pipeline_adoption import adopt_on_spark, print_adopted
from millstream.cli.pipeline_anchor import anchor_command
from millstream.cli.pipeline_audit import audit_command
from millstream.cli.pipeline_batch import batch_command, print_record
from millstream.cli.pipeline_duplication import duplication_command
from millstream.cli.pipeline_ingest import ingest_command
from millstream.cli.pipeline_operations import operations_command
from millstream.cli.pipeline_package import package_command
from millstream.cli.pipeline_progress import shown
from millstream.cli.pipeline_statistics import statistics_command
from millstream.cli.pipeline_verify import verify_command
from millstream.cli.pipeline_warm import warm_command
from millstream.cli.protect_parts import checksums_option
from millstream.cli.spark_options import master_option
from millstream.core.amounts import size_text
from millstream.core.clock import MICROSECONDS
from millstream.mill.reports.report import IntegrityReport, ReportResult, SpaceTally, coverage_text, difference_lines
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import StoreError

if TYPE_CHECKING:
    from millstream.pipeline.jobs.report import JudgedSweep, SpaceSweep
    from millstream.pipeline.planning.due_items import DueRule

name_option = click.option(
    "--name",
    help="Name of the run; a completed run is not repeated (default: the interrupted run, or a new one).",
)
space_option = click.option("--space", "spaces", multiple=True, metavar="SPACE", help="Only this space (repeatable).")


@click.group()
def pipeline() -> None:
    """Run jobs on Spark, on this machine or on the master in the settings."""


pipeline.add_command(ingest_command)
pipeline.add_command(batch_command)
pipeline.add_command(anchor_command)
pipeline.add_command(audit_command)
pipeline.add_command(duplication_command)
pipeline.add_command(operations_command)
pipeline.add_command(package_command)
pipeline.add_command(statistics_command)
pipeline.add_command(verify_command)
pipeline.add_command(warm_command)


@example("millstream pipeline inventory --space photos")
@pipeline.command()
@name_option
@space_option
@click.option("--changes", is_flag=True, help="Also write the changes since the previous listing.")
@click.option("--adopt", is_flag=True, help="Read new items of sources of other programs, as protect does.")
@click.option("--read", "read_all", type=click.Choice(["all"]), help="Read every item again (with --adopt).")
@checksums_option
@json_option
@data_options
@master_option
def inventory(
    settings: Settings,
    *,
    name: str | None,
    spaces: tuple[str, ...],
    changes: bool,
    adopt: bool,
    read_all: str | None,
    checksums: Path | None,
    as_json: bool,
) -> int:
    """List the spaces of all stores into Parquet files. Exit code 1 if a store could not be listed.

    With --changes, further Parquet files have a row for each item that was added, removed or changed (size or time)
    since the previous listing of the same stores and spaces. With --adopt, the folders and buckets that other programs
    write are adopted too: `millstream protect` does not read them again. --read all and --checksums are those of
    `millstream protect`. Exit code 1 also if adoption has findings.
    """
    from millstream.pipeline.jobs.changes import find_changes
    from millstream.pipeline.jobs.inventory import run_inventory
    from millstream.pipeline.jobs.statistics import latest_before

    if not adopt and (read_all or checksums is not None):
        raise click.UsageError("--read and --checksums require --adopt: add --adopt")
    with Node.open(settings) as node, node.spark.session() as spark, shown(spark, "inventory"):
        jobs = node.spark.jobs
        run = name or _run_name(node, "inventory", "snapshot", spaces)
        found = run_inventory(spark, jobs, run, settings.store_urls, spaces=spaces or None, clock=node.clock)
        before = latest_before(jobs, found.record) if changes else None
        changed = find_changes(spark, jobs, found, before, clock=node.clock) if before is not None else None
        adopted = []
        if adopt:
            adopted = adopt_on_spark(node, spark, spaces, read_all=bool(read_all), checksums=checksums)
    print_record(found.record, found.data, as_json=as_json, reused=found.reused)
    if changed is not None:
        print_record(changed.record, changed.data, as_json=as_json, reused=changed.reused)
    elif changes:
        click.echo("there is no earlier listing to compare with", err=True)
    print_adopted(adopted, as_json=as_json)
    for unlisted in found.unlisted():
        click.echo(f"{unlisted.store}/{unlisted.space or '*'}: the listing broke off: {unlisted.error}", err=True)
    return 1 if found.unlisted() or any(one.adoption.findings for one in adopted) else 0


@example("millstream pipeline integrity --older-than 30d")
@pipeline.command()
@name_option
@space_option
@click.option("--older-than", type=Duration(), help="Only copies last verified longer ago, such as 30d.")
@click.option("--budget", type=SizeType(), help="Maximum size to read, such as 500GB; most urgent copies first.")
@json_option
@data_options
@master_option
def integrity(
    settings: Settings, *, name: str | None, spaces: tuple[str, ...], older_than: int | None, budget: int | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Read and verify every copy on every store. Exit code 1 unless everything was listed, checked and found intact.

    With --older-than everything is listed and compared, but only due copies are read: those that contradict the
    manifest, that failed their last check, that were never verified, and that are old enough (at half the age if there
    is no other copy).
    """
    from millstream.pipeline.output.job_folder import remove_old_jobs
    from millstream.pipeline.planning.due_items import DueRule

    due = DueRule(older_than or 0, budget)
    with Node.open(settings) as node:
        judged = _sweep(node, name, spaces, due)
        overtaken = node.mill.checks.recheck_superseded(judged.findings())
        node.mill.checks.writer.write(judged.results(overtaken))
        unrecorded = node.mill.checks.check_unrecorded(spaces, judged.results)
        reporter = node.mill.reports.reporter
        found = [
            msgspec.structs.replace(space, report=reporter.keep(space.report))
            for space in judged.spaces(overtaken, unrecorded)
        ]
        found += _empty_copies(node, found)
        remove_old_jobs(node.spark.jobs, before=node.clock.now() - settings.pipeline.keep_jobs)
    _print_spaces(found, as_json=as_json)
    return 0 if all(space.report.result == ReportResult.SUCCESS for space in found) else 1


@example("millstream pipeline report second photos")
@pipeline.command()
@click.argument("store")
@click.argument("space")
@json_option
@data_options
def report(settings: Settings, *, store: str, space: str, as_json: bool) -> int:
    """Print the last integrity report on SPACE of STORE. Exit code 1 unless it says SUCCESS, 3 if there is none."""
    with Node.open(settings) as node:
        latest = node.mill.reports.folder.latest(store, space)
    if latest is None:
        click.echo(f"no report on {store}/{space} yet: millstream pipeline integrity", err=True)
        return 3
    if as_json:
        print_json(latest)
    else:
        _echo_report(latest)
    return 0 if latest.result == ReportResult.SUCCESS else 1


def _empty_copies(node: Node, found: Sequence[SpaceSweep]) -> list[SpaceSweep]:
    """Reports on copies of the spaces *found* in which nothing is listed and nothing recorded, there or not."""
    from millstream.pipeline.jobs.report import SpaceSweep

    providers, reporter, reports = node.stores.providers, node.mill.reports.reporter, list[SpaceSweep]()
    places = {(space.report.store, space.report.space) for space in found}
    for store, space in sorted(asked_spaces(node, places) - places):
        if node.stores.manifest.count(store, space):
            continue  # nothing of it was due
        tally, now = SpaceTally(), node.clock.now()
        try:
            providers.spaces(store)
        except StoreError as error:
            tally.fail(f"the listing stopped before its end: {error}")
        reports.append(SpaceSweep(reporter.keep(reporter.make(tally, store, space, since=now, until=now)), 0.0))
    return reports


def _sweep(node: Node, name: str | None, spaces: tuple[str, ...], due: DueRule) -> JudgedSweep:
    from millstream.pipeline.jobs.integrity import run_integrity
    from millstream.pipeline.jobs.report import run_report
    from millstream.pipeline.planning.due_items import EVERYTHING

    jobs, stores = node.spark.jobs, node.settings.store_urls
    rule = {} if due == EVERYTHING else {"due": msgspec.to_builtins(due)}
    run = name or _run_name(node, "integrity", "sweep", spaces, **rule)
    with node.spark.session() as spark, shown(spark, "integrity"):
        sweep = run_integrity(
            spark, jobs, run, stores, node.stores.manifest.batches(), spaces=spaces or None, due=due, clock=node.clock
        )
        return run_report(spark, jobs, sweep, clock=node.clock)


def _run_name(node: Node, job: str, member: str, spaces: tuple[str, ...], **more: Any) -> str:
    """The run of *job* on the same stores and spaces that was cut short; else a new one, named for the time."""
    from millstream.pipeline.output.job_folder import unfinished

    wanted = {"stores": node.settings.store_urls, "spaces": sorted(spaces) or None, **more}
    for inputs in unfinished(node.spark.jobs, job):
        if inputs == {member: inputs[member], **wanted}:
            return str(inputs[member])
    return datetime.fromtimestamp(node.clock.now() / MICROSECONDS, UTC).isoformat(timespec="milliseconds")


def _print_spaces(found: list[SpaceSweep], *, as_json: bool) -> None:
    for space in found:
        if as_json:
            figures: dict[str, Any] = {"seconds": space.seconds, "bytes_per_second": round(space.rate)}
            print_json(msgspec.to_builtins(space.report) | figures)
        else:
            _echo_report(space.report)
            click.echo(f"  {size_text(space.report.bytes)} read, {size_text(space.rate)}/s on one core")


def _echo_report(found: IntegrityReport) -> None:
    place = f"{found.store}/{found.space}"
    share = f"{found.checked:,} checked and {found.explained:,} explained of {found.listed:,}"
    click.echo(f"{found.result.value:<10} {place}: {share} ({coverage_text(found)}), {found.failed:,} failed")
    for note in (*difference_lines(found), *found.notes):
        click.echo(f"  {note}")
    for finding in found.findings:
        click.echo(f"  {finding.verdict} {finding.row} {finding.content_id}: {finding.detail}")
