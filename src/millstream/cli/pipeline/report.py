"""``millstream pipeline report``: the last integrity report of a space."""

from __future__ import annotations

import click

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.mill.reports.report import IntegrityReport, ReportResult, coverage_text, difference_lines
from millstream.node import Node
from millstream.settings import Settings


@example("millstream pipeline report second photos")
@click.command("report")
@click.argument("store")
@click.argument("space")
@json_option
@data_options
def report_command(settings: Settings, *, store: str, space: str, as_json: bool) -> int:
    """Print the last integrity report on SPACE of STORE. Exit code 1 unless it says SUCCESS, 3 if there is none."""
    with Node.open(settings, reads=True) as node:
        latest = node.mill.reports.archive.latest(store, space)
    if latest is None:
        click.echo(f"no report on {store}/{space} yet: millstream pipeline integrity", err=True)
        return 3
    if as_json:
        print_json(latest)
    else:
        echo_report(latest)
    return 0 if latest.result == ReportResult.SUCCESS else 1


def echo_report(found: IntegrityReport) -> None:
    place = f"{found.store}/{found.space}"
    share = f"{found.checked:,} checked and {found.explained:,} explained of {found.listed:,}"
    echo_line(f"{found.result.value:<10} {place}: {share} ({coverage_text(found)}), {found.failed:,} failed")
    for note in (*difference_lines(found), *found.notes):
        echo_line(f"  {note}")
    for finding in found.findings:
        echo_line(f"  {finding.verdict} {finding.row} {finding.content_id}: {finding.detail}")
