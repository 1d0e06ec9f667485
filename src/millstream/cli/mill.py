"""``millstream mill``: duplicate by policy, check every bit, repair, report."""

from __future__ import annotations

import click

from millstream.cli.mill_accept import accept
from millstream.cli.mill_approve import approve, reject
from millstream.cli.mill_audit import audit, reconcile
from millstream.cli.mill_check import check, repair
from millstream.cli.mill_duplicate import duplicate, forget
from millstream.cli.mill_policy import policy
from millstream.cli.mill_produce import produce
from millstream.cli.mill_rebuild import rebuild
from millstream.cli.mill_report import report, statistics
from millstream.cli.mill_work import work


@click.group()
def mill() -> None:
    """Duplicate by policy, check every bit, repair, report."""


for command in (
    policy,
    produce,
    duplicate,
    approve,
    reject,
    check,
    repair,
    report,
    statistics,
    rebuild,
    work,
    forget,
    accept,
    audit,
    reconcile,
):
    mill.add_command(command)
