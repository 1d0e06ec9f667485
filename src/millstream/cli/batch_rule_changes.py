"""``millstream batch rules``: show the rules of a log of batches, and change them from a time on."""

from __future__ import annotations

from typing import Any

import click

from millstream.batching.rule_changes import CHANGE_ACTION, BatchedRules
from millstream.batching.rulebook import Rulebook
from millstream.cli.change_log import prepare_audit_log, record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.parameter_types import Timestamp
from millstream.core.timestamps import time_text
from millstream.node import Node
from millstream.settings import Settings


@example("millstream batch rules weather.batches --change --from 2026-12-01T00:00Z")
@click.command("rules")
@click.argument("output", metavar="LOG")
@click.option("--change", is_flag=True, help="Let the rules in the settings begin at --from.")
@click.option(
    "--from",
    "since",
    type=Timestamp(),
    metavar="TIME",
    help="With --change: the event time at which the new rules begin (default: as early as possible).",
)
@json_option
@data_options
def rules_command(settings: Settings, *, output: str, change: bool, since: int | None, as_json: bool) -> None:
    """Show the rules of the log of batches LOG, or change them.

    Messages with an event time before a change keep the earlier rules, so existing batches and their ids do not change.
    To change the rules: edit the section batching of the settings, run this command with --change, then restart what
    batches into LOG. A batch service or Spark stream need not stop before. A change cannot be withdrawn; another one
    can follow it.
    """
    if since is not None and not change:
        raise click.UsageError("--from is the time of a change: add --change")
    with Node.open(settings, reads=not change) as node:
        if change:
            prepare_audit_log(node)
            changed = node.batching.change_rules(output, since)
            begun = time_text(changed.later[-1].since)
            record_change(node, CHANGE_ACTION, output, since=begun, rules=changed.current.rules_text)
        found = node.batching.rules_status(output)
        source, given = node.batching.source_of(output), node.batching.rules
    if as_json:
        print_json(_plain(source, output, found, given))
    else:
        _show(source, output, found, given)


def _plain(source: str, output: str, found: BatchedRules | None, given: Rulebook) -> dict[str, Any]:
    rules = given if found is None else found.rules
    begun = [None, *(time_text(change.since) for change in rules.later)]
    return {
        "log": source,
        "output": output,
        "rules": [
            {"number": number, "since": since, "rules": period.plain}
            for number, (since, period) in enumerate(zip(begun, rules.periods, strict=True), start=1)
        ],
        "as_in_settings": given == rules.current,
        "batched_to": None if found is None else time_text(found.clock),
        "earliest_change": None if found is None else time_text(found.earliest),
    }


def _show(source: str, output: str, found: BatchedRules | None, given: Rulebook) -> None:
    if found is None:
        echo_line(f"{output}: no batches of {source} yet; the rules in the settings apply: {given.rules_text}")
        return
    rules = found.rules
    echo_line(f"{output}: batches of {source}, received up to {time_text(found.clock)}")
    begun = ["the first message", *(time_text(change.since) for change in rules.later)]
    for number, (since, period) in enumerate(zip(begun, rules.periods, strict=True), start=1):
        echo_line(f"  rules {number}, from {since}: {period.rules_text}")
    if given == rules.current:
        return
    echo_line(f"  rules in the settings, not in use: {given.rules_text}")
    echo_line(f"  they can begin at {time_text(found.earliest)} or later: millstream batch rules {output} --change")
