"""``millstream log describe`` and ``list``."""

from __future__ import annotations

import click
import msgspec

from millstream.cli.common import echo_line, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.core.amounts import counted, format_duration, size_text
from millstream.core.clock import SystemClock
from millstream.log.errors import DamagedLogError
from millstream.log.kinds import SYSTEM_KINDS, Kind
from millstream.log.spec import LogSpec
from millstream.log.upkeep.retention import Retention
from millstream.log.upkeep.rules import LogRule, rule_for
from millstream.node.logs import open_to_read
from millstream.settings import Settings


@example("millstream log describe weather --json")
@click.command()
@click.argument("name")
@json_option
@store_options
def describe(settings: Settings, name: str, as_json: bool) -> None:
    """Show the size, ids, writer, consumers and retention of the log NAME."""
    with existing_log(settings, name, read_only=True) as opened:
        found, policy = opened.info(), opened.retention
    rule = rule_for(name, settings.log.rules)
    if as_json:
        print_json({**msgspec.to_builtins(found), "retention": policy, "rule": None if rule is None else rule.log})
        return
    click.echo(f"{found.name}: {counted(found.count, 'message')}, ids {found.first_id} to {found.last_id}")
    click.echo(f"kind      {found.kind}")
    click.echo(f"stored    {size_text(found.bytes)} in {counted(found.blocks, 'block')}, durable by {found.durability}")
    if found.tier is not None:
        tiered = f"{size_text(found.tier.bytes)} of it in {counted(found.tier.objects, 'object')} at {found.tier.url}"
        click.echo(f"tier      {tiered}, up to id {found.tier.last_id}")
    click.echo(f"trimmed   {_trimmed(found.kind, policy, rule)}")
    click.echo(f"writer    {found.writer or 'none'}")
    for consumer, pointer in found.consumers.items():
        echo_line(f"consumer  {consumer}: acknowledged up to {pointer}, {found.last_id - pointer:,} behind")


def _trimmed(kind: Kind, policy: Retention | None, rule: LogRule | None) -> str:
    """The rules by which a log of this *kind* with this *policy*, and with this *rule* of the settings, is trimmed."""
    if policy is not None and policy.keep_all:
        return "never: its policy is to keep all"
    if rule is not None and rule.retention is not None:
        return f"by the rule for {rule.log!r} in the settings: {_limits(rule.retention)}"
    if policy is not None and policy != Retention():
        return f"by its own policy: {_limits(policy)}"
    if kind in SYSTEM_KINDS:
        return "by Millstream, as soon as the node no longer needs a message"
    return "never: the log has no policy, and no rule in the settings matches it"


def _limits(policy: Retention) -> str:
    said = {
        "max_age": None if policy.max_age is None else format_duration(policy.max_age),
        "max_bytes": None if policy.max_bytes is None else size_text(policy.max_bytes),
        "max_count": None if policy.max_count is None else f"{policy.max_count:,}",
        "cap_bytes": None if policy.cap_bytes is None else size_text(policy.cap_bytes),
    }
    limits = [f"{name} {value}" for name, value in said.items() if value is not None]
    return ", ".join([*limits, *(["keep_consumers"] if policy.keep_consumers else [])])


@example("millstream log list")
@click.command("list")
@json_option
@store_options
def list_logs(settings: Settings, as_json: bool) -> int:
    """List the logs.

    Exit code 1 if a log is damaged; the other logs are listed nevertheless.
    """
    is_damaged = False
    with open_to_read(settings, SystemClock()) as store:
        for name in store.logs():
            try:
                found = store.log(LogSpec(name), create=False).info()
            except DamagedLogError as error:
                is_damaged = True
                echo_line(f"{name}: {error}", err=True)
                continue
            if as_json:
                print_json(found)
            else:
                click.echo(f"{found.count:>15,}  {size_text(found.bytes):>9}  {name}")
    return int(is_damaged)
