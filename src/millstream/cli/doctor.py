"""``millstream doctor``: show what is missing on this machine, and how to install it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import click

from millstream.cli.common import echo_line, json_option, print_json, store_options
from millstream.cli.doctor_database import check_database
from millstream.cli.doctor_ledgers import check_ledgers
from millstream.cli.doctor_machine import Check, check_machine
from millstream.cli.doctor_node import check_node, needed_extras
from millstream.cli.doctor_packages import check_packages, check_programs
from millstream.cli.examples import example
from millstream.cli.logging_setup import describe_error
from millstream.settings import Settings


@example("millstream doctor")
@click.command()
@store_options
@json_option
def doctor(settings: Settings, as_json: bool) -> int:
    """Show what is missing on this machine and how to install it.

    Exit code 1 if the settings require something that is missing. What they do not require is listed as optional, with
    its purpose. The command writes to folders and connects to the servers of the settings; for a log store on a
    database server it compares the server's settings with the recommended ones, and for a bucket it tests whether
    exactly one of several concurrent creators of a name succeeds. If the tables are on a server, it names files in the
    data folder that are no longer used.
    """
    missing = 0
    for check in run_checks(settings):
        missing += not check.ok and not check.optional
        if as_json:
            print_json(check)
            continue
        echo_line(f"{_word(check):<8}  {check.name:<18} {check.found}")
        if not check.ok:
            echo_line(f"{'':10}for {check.needed_for}: {check.fix}")
    if not as_json:
        click.echo(f"{missing} missing" if missing else "nothing that the settings need is missing")
    return 1 if missing else 0


def run_checks(settings: Settings) -> Iterator[Check]:
    """Every check, in the order in which a message passes the parts. An error of a group ends no other group."""
    groups: Sequence[tuple[str, Callable[[], Iterator[Check]]]] = (
        ("machine", lambda: check_machine(settings)),
        ("settings", lambda: check_node(settings)),
        ("node's database", lambda: check_database(settings)),
        ("ledgers", lambda: check_ledgers(settings)),
        ("packages", lambda: check_packages(needed_extras(settings, os.environ), settings.pipeline.java)),
        ("programs", check_programs),
    )
    for name, checks in groups:
        try:
            yield from checks()
        except Exception as error:  # of any type: what has failed is what the command is asked for
            fix = "correct what this error names, and run the command again"
            yield Check(name, False, describe_error(error), "the other checks of this part", fix)


def _word(check: Check) -> str:
    if check.ok:
        return "ok"
    return "optional" if check.optional else "missing"
