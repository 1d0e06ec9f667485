"""``millstream mill check``, ``repair`` and ``report``: find damage, heal it, say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from millstream.cli.common import data_options, is_terminal, json_option, print_json, size_text
from millstream.cli.mill_progress import print_tally, progress_bar, work_off
from millstream.cli.mill_spaces import chosen_spaces
from millstream.mill.checker import Checked
from millstream.mill.report import Report, ReportResult, build_report, tsv_lines
from millstream.mill.sweep import check_space
from millstream.mill.tasks import QueueName, encode_task
from millstream.node import Node
from millstream.settings import Settings


@click.command()
@click.option("--store", "only_store", metavar="ID", help="Only this store.")
@click.option("--space", "only_space", metavar="SPACE", help="Only this space.")
@data_options
@json_option
def check(settings: Settings, only_store: str | None, only_space: str | None, as_json: bool) -> int:
    """Read every byte, compare it with the manifest, and write a report for each space.

    What is found is put on the repair queue (see `millstream mill repair`). Exit code 1 unless every report says
    SUCCESS.
    """
    good = True
    with Node.open(settings) as node:
        for store, space in chosen_spaces(node, only_store, only_space):
            report = _check(node, store, space)
            _print_report(report, as_json)
            good = good and report.result == ReportResult.SUCCESS
    return 0 if good else 1


@click.command()
@click.argument("item", nargs=-1, metavar="[SPACE CONTENT_ID]")
@click.option("--dry-run", is_flag=True, help="Say what a repair of the named item would do.")
@data_options
@json_option
def repair(settings: Settings, item: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Heal what checks have found, or the copies of one item, by a vote of the manifest and the copies.

    Exit code 1 if something could not be healed; the reason is printed.
    """
    if len(item) not in (0, 2) or (dry_run and not item):
        raise click.UsageError("name a space and a content id, or nothing to work off the repair queue")
    with Node.open(settings) as node:
        if dry_run:
            print_json(node.repairer.plan(*item))
            return 0
        if not item:
            errors = node.queue(QueueName.BIT_ERROR)
            before = errors.depth().ready
            tally = work_off(node, QueueName.REPAIR)
            print_tally(tally, as_json)
            return 1 if tally.dead or errors.depth().ready > before else 0
        healing = node.repairer.repair(*item)
        for event in healing.events:
            if as_json:
                print_json(event)
            else:
                what = f"healed from store {event.good}" if event.healed else "not healed"
                click.echo(f"{event.space}/{event.content_id} {event.store}: {what}: {event.reason}")
        return 1 if healing.refused else 0


@click.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@click.option("--verify", is_flag=True, help="Walk the chain of reports and print the SHA-256 of the last one.")
@data_options
@json_option
def report(settings: Settings, store: str | None, space: str | None, verify: bool, as_json: bool) -> int:
    """Print the latest report of every space. Exit code 1 unless all say SUCCESS."""
    good = True
    with Node.open(settings) as node:
        for where in chosen_spaces(node, store, space):
            latest = node.reports.latest(*where)
            if latest is None:
                click.echo(f"{where[0]}/{where[1]}: never checked; run `millstream mill check`", err=True)
                good = False
                continue
            if verify:
                click.echo(f"{where[0]}/{where[1]}: {node.reports.verify(*where)}")
            else:
                _print_report(latest, as_json)
            good = good and latest.result == ReportResult.SUCCESS
    return 0 if good else 1


def _check(node: Node, store: str, space: str) -> Report:
    started, account = node.clock.now(), node.settings.mill.account
    lines: list[str] = []

    def follow(group: Sequence[Checked]) -> None:
        rows = list(tsv_lines((one.result for one in group), account=account))
        lines.extend(rows[1:] if lines else rows)
        for name in (QueueName.REPAIR, QueueName.BIT_ERROR):
            tasks = [encode_task(one.task[1]) for one in group if one.task and one.task[0] == name]
            if tasks:
                node.queue(name).put(tasks)
        progress.advance(bar, len(group))

    with progress_bar(not is_terminal()) as progress:
        bar = progress.add_task(f"{store}/{space}", total=node.manifest.count(store, space))
        threads = node.settings.mill.workers
        tally = check_space(node.providers, node.manifest, store, space, threads=threads, on_checked=follow)
    made = build_report(tally, store, space, started_at=started, ended_at=node.clock.now(), account=account)
    node.reports.save(made, "".join(lines).encode())
    return made


def _print_report(found: Report, as_json: bool) -> None:
    if as_json:
        values: dict[str, Any] = msgspec.to_builtins(found)
        print_json(values)
        return
    click.echo(
        f"{found.store}/{found.space}: {found.result.value}: {found.listed:,} listed, {found.checked:,} checked, "
        f"{found.explained:,} explained, {found.failed:,} failed, {size_text(found.bytes)} read, "
        f"coverage {found.coverage:.1%}"
    )
    for finding in found.findings[:20]:
        click.echo(f"  {finding.content_id}: {finding.row} {finding.kind}: {finding.detail}")
    if len(found.findings) > 20:
        click.echo(f"  … and {len(found.findings) - 20:,} more; see --json")
    for note in found.notes:
        click.echo(f"  {note}")
