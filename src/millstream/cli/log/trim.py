"""``millstream log trim``: deletes the oldest messages of a log, by an id or by rules."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.change_log import record_freed_space
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.cli.parameter_types import Duration, SizeType
from millstream.core.amounts import counted, size_text
from millstream.core.clock import SystemClock
from millstream.log import Retention, RetentionEnforcer, RetentionPlan
from millstream.settings import Settings


@example("millstream log trim weather --max-age 90d --keep-consumers --dry-run")
@click.command()
@click.argument("name")
@click.option("--below", type=click.IntRange(1), metavar="ID", help="New first id of the log; not with rules.")
@click.option("--max-age", type=Duration(), help="Trim messages received longer ago, such as 30d.")
@click.option("--max-bytes", type=SizeType(), help="Maximum size to keep, such as 10GB.")
@click.option("--max-count", type=click.IntRange(0), help="Maximum number of messages to keep.")
@click.option("--keep-consumers", is_flag=True, help="Keep messages that a consumer has not acknowledged.")
@click.option("--cap-bytes", type=SizeType(), help="With --keep-consumers: maximum size to keep for consumers.")
@click.option("--keep-policy", is_flag=True, help="Store these rules with the log as its policy.")
@click.option("--accept-clock", is_flag=True, help="Trim by age even if the clock seems to have jumped.")
@click.option("--dry-run", is_flag=True, help="Show what would be trimmed; change nothing.")
@json_option
@store_options
def trim(
    settings: Settings,
    name: str,
    below: int | None,
    keep_policy: bool,
    accept_clock: bool,
    dry_run: bool,
    as_json: bool,
    **rules: Any,
) -> None:
    """Trim the oldest messages of the log NAME: below an id, by rules, or by the log's own policy.

    Rules are the options from --max-age to --cap-bytes. Without --below and rules, the policy applies that is stored
    with the log. Readers behind the new first id are told which ids are gone. Ages are measured from receive times; if
    the last check of ages is longer ago than half of --max-age, the clock may have jumped, and nothing is trimmed by
    age. More data may stay stored than can be read: blocks and segment files are freed as a whole. An SQLite file keeps
    freed space for new messages, until `millstream log vacuum` gives it back to the file system.
    """
    named = keep_policy or any(value is not None and value is not False for value in rules.values())
    policy = Retention(**rules) if named else None
    if below is not None and policy is not None:
        raise click.UsageError("--below and retention rules cannot be combined: give one of them")
    with existing_log(settings, name, create=False, read_only=dry_run) as found:
        if below is not None:
            before = found.first_id
            found.require_trimmable(below)
            freed = 0 if dry_run else found.trim(below)
            done = RetentionPlan(
                log=name, first_id=below if below > before else None, messages=max(below - before, 0), freed_bytes=freed
            )
        else:
            if keep_policy and not dry_run:
                found.set_retention(policy)
            done = RetentionEnforcer(found, SystemClock(), policy).run_once(dry_run=dry_run, accept_clock=accept_clock)
    if not dry_run:
        facts = {"first_id": done.first_id, "messages": done.messages, "accept_clock": accept_clock}
        record_freed_space(settings, "trim", f"log {name}", **facts)
    if as_json:
        print_json(done)
    else:
        _print_plan(done, dry_run)


def _print_plan(plan: RetentionPlan, dry_run: bool) -> None:
    for reason in plan.held:
        click.echo(f"{plan.log}: {reason}", err=True)
    for consumer, count in plan.pinned.items():
        click.echo(f"{consumer} has not acknowledged {counted(count, 'message')} that could go")
    for consumer, count in plan.lost.items():
        click.echo(f"{consumer} loses {counted(count, 'message')} that it has not acknowledged", err=True)
    if plan.first_id is None:
        click.echo(f"{plan.log}: nothing to trim")
    elif dry_run:
        click.echo(f"{plan.log}: would begin at id {plan.first_id}, {counted(plan.messages, 'message')} fewer")
    else:
        freed = size_text(plan.freed_bytes)
        click.echo(
            f"{plan.log}: begins at id {plan.first_id}, {counted(plan.messages, 'message')} fewer, {freed} freed"
        )
