"""``millstream mill check`` and ``repair``: find damage, repair it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.audit import process_audits
from millstream.cli.mill.processes_option import processes_option
from millstream.cli.mill.report import print_report
from millstream.cli.mill.space_options import chosen_spaces
from millstream.cli.progress import progress_bar
from millstream.cli.queue_draining import drain_queues, print_tally
from millstream.core.errors import NotFoundError
from millstream.mill.audit.audit_lookup import add_missed
from millstream.mill.integrity.checker import CheckedGroup
from millstream.mill.integrity.sweep import check_space
from millstream.mill.repair.repair_log import RepairEvent
from millstream.mill.repair.vote import RepairDecision
from millstream.mill.reports.report import IntegrityReport, ReportResult
from millstream.mill.tasks import QueueName, encode_task
from millstream.node import Node
from millstream.settings import Settings

MAX_REFUSALS = 1000
"""Maximum number of refusals that a run prints; the repair log has all."""


@example("millstream mill check --store second --space photos")
@click.command()
@click.option("--store", "only_store", metavar="ID", help="Only this store.")
@click.option("--space", "only_space", metavar="SPACE", help="Only this space.")
@data_options
@processes_option
@json_option
def check(settings: Settings, only_store: str | None, only_space: str | None, as_json: bool) -> int:
    """Read every byte, compare it with the manifest, and write a report for each space.

    Findings are put on the repair queue (see `millstream mill repair`). Exit code 1 unless every store could be listed,
    the policies could be read, and every report says SUCCESS.
    """
    good, unlisted, errors = True, list[str](), list[str]()
    with Node.open(settings) as node:
        process_audits(node)
        for store, space in chosen_spaces(node, only_store, only_space, unlisted=unlisted, policy_errors=errors):
            report = _check(node, store, space)
            print_report(report, as_json)
            good = good and report.result == ReportResult.SUCCESS
    return 0 if good and not unlisted and not errors else 1


@example("millstream mill repair photos 2013/a.jpg --dry-run")
@click.command()
@click.argument("item", nargs=-1, metavar="[SPACE CONTENT_ID]")
@click.option("--dry-run", is_flag=True, help="Show the repair of the item; change nothing; requires SPACE CONTENT_ID.")
@click.option(
    "--restore-source",
    is_flag=True,
    help="Also restore the recorded bytes at the source of the item, if it was rewritten; requires SPACE CONTENT_ID.",
)
@data_options
@json_option
def repair(settings: Settings, item: Sequence[str], dry_run: bool, restore_source: bool, as_json: bool) -> int:
    """Repair what checks have found, or the copies of one item, from a confirmed copy.

    Without SPACE and CONTENT_ID the tasks on the repair queue are processed. A copy is confirmed if manifest and audit
    log agree with its bytes. Exit code 1 if something could not be repaired (with --dry-run 0), 3 if the item is
    unknown; the reason is printed.
    """
    if len(item) not in (0, 2) or ((dry_run or restore_source) and not item):
        raise click.UsageError(
            "give SPACE and CONTENT_ID to repair one item, or neither to process the repair queue; --dry-run and "
            "--restore-source require SPACE and CONTENT_ID"
        )
    with Node.open(settings, reads=dry_run) as node:
        if dry_run:
            plan = node.mill.repairs.repairer.plan(*item, restore_source=restore_source)
            print_json(plan)
            return NotFoundError.exit_code if plan.decision == RepairDecision.UNKNOWN else 0
        if not item:
            errors = node.queues.open(QueueName.BIT_ERROR)
            before, started = errors.depth().ready, node.clock.now()
            tally = drain_queues(node, QueueName.REPAIR)
            print_tally(tally, as_json)
            done = node.mill.repairs.log.last(MAX_REFUSALS)
            _print_events([one for one in reversed(done) if not one.healed and one.at >= started], as_json)
            return 1 if tally.dead or errors.depth().ready > before else 0
        record = partial(record_change, node, "repair", "/".join(item), restore_source=restore_source)
        try:
            result = node.mill.repairs.repairer.repair(*item, restore_source=restore_source)
        except Exception as error:  # a copy may have been repaired before another one failed
            record(error=str(error))
            raise
        record(repaired=result.repaired, refused=len(result.refused))
        _print_events(result.events, as_json)
        if result.plan.decision == RepairDecision.UNKNOWN:
            return NotFoundError.exit_code
        return 1 if result.refused else 0


def _print_events(events: Sequence[RepairEvent], as_json: bool) -> None:
    for event in events:
        if as_json:
            print_json(event)
        else:
            what = f"repaired from store {event.good}" if event.healed else "not repaired"
            store = f" {event.store}" if event.store else ""  # a refusal may concern all copies
            echo_line(f"{event.space}/{event.content_id}{store}: {what}: {event.reason}")


def _check(node: Node, store: str, space: str) -> IntegrityReport:
    started = node.clock.now()

    def follow(group: CheckedGroup) -> None:
        for name in (QueueName.REPAIR, QueueName.BIT_ERROR):
            tasks = [encode_task(one.task[1]) for one in group.others if one.task and one.task[0] == name]
            if tasks:
                node.queues.open(name).put(tasks)
        if missed := [one.missed for one in group.others if one.missed]:
            add_missed(node.stores.outbox, node.mill.audit.log, missed)
        progress.advance(bar, group.items)

    with progress_bar() as progress:
        bar = progress.add_task(f"{store}/{space}", total=node.stores.manifest.count(store, space))
        tally = check_space(
            node.stores.providers,
            node.stores.manifest,
            store,
            space,
            threads=node.settings.mill.workers,
            on_checked=follow,
            checker=node.mill.checks.checker,
            writer=node.mill.checks.writer,
        )
    return node.mill.reports.reporter.keep(
        node.mill.reports.reporter.make(tally, store, space, since=started, until=node.clock.now())
    )
