"""``millstream mill``: duplicate by policy, check every bit, repair, report."""

from __future__ import annotations

import click

from millstream.cli.command_group import CommandGroup

TABLES = {
    "Copies": {
        "policy": (
            "millstream.cli.mill.policy:policy",
            "Show and change which spaces are copied to which stores.",
        ),
        "produce": (
            "millstream.cli.mill.produce:produce",
            "Put tasks for every space on the queues, one loop over all spaces at a time.",
        ),
        "work": (
            "millstream.cli.mill.work:work",
            "Process tasks until stopped; the first queue has priority.",
        ),
        "duplicate": (
            "millstream.cli.mill.duplicate:duplicate",
            "Copy by policy until all copies are up to date.",
        ),
        "approve": (
            "millstream.cli.mill.approve:approve",
            "List the plans that the change guard holds, or approve the plans with the listed NUMBERS.",
        ),
        "reject": (
            "millstream.cli.mill.approve:reject",
            "Reject the held plan NUMBER: it is not executed, and needs a new decision only if it grows.",
        ),
        "forget": (
            "millstream.cli.mill.duplicate:forget",
            "Record that items were deleted from STORE on purpose, so that their copies may be deleted too.",
        ),
        "accept": (
            "millstream.cli.mill.accept:accept",
            "Record the current bytes of items of STORE as correct, even if their recorded or listed checksum differs.",
        ),
    },
    "Checks": {
        "check": (
            "millstream.cli.mill.check:check",
            "Read every byte, compare it with the manifest, and write a report for each space.",
        ),
        "repair": (
            "millstream.cli.mill.check:repair",
            "Repair what checks have found, or the copies of one item, from a confirmed copy.",
        ),
        "report": (
            "millstream.cli.mill.report:report",
            "Print the latest report of every space, and its age.",
        ),
        "statistics": (
            "millstream.cli.mill.report:statistics",
            "Print the items and bytes of each space at its last count.",
        ),
    },
    "Records": {
        "audit": (
            "millstream.cli.mill.audit:audit",
            "Print the audit log of all audited stores, or of one, as a text table.",
        ),
        "reconcile": (
            "millstream.cli.mill.audit:reconcile",
            "Compare the listings of audited stores with the audit log, and list every missing event.",
        ),
        "retire": (
            "millstream.cli.mill.retire:retire",
            "Retire the records of STORE, which was removed from the settings for good.",
        ),
        "rebuild": (
            "millstream.cli.mill.rebuild:rebuild",
            "Rebuild a lost or damaged TABLE for all spaces, the spaces of STORE, or one SPACE.",
        ),
    },
}


@click.group(cls=CommandGroup, tables=TABLES)
def mill() -> None:
    """Duplicate by policy, check every bit, repair, report."""
