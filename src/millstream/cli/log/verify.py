"""``millstream log verify``."""

from __future__ import annotations

import click

from millstream.cli.common import echo_line, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.core.amounts import counted
from millstream.settings import Settings


@example("millstream log verify weather --deep")
@click.command()
@click.argument("name")
@click.option("--deep", is_flag=True, help="Also read the tiered objects of older messages.")
@json_option
@store_options
def verify(settings: Settings, name: str, deep: bool, as_json: bool) -> int:
    """Verify every checksum of the log NAME, and that no id is missing. Exit code 1 if anything is wrong."""
    with existing_log(settings, name, read_only=True) as log:
        found = log.verify(deep=deep)
    if as_json:
        print_json(found)
    else:
        for problem in found.problems:
            echo_line(problem, err=True)
        verdict = "ok" if found.ok else counted(len(found.problems), "problem")
        objects = f", {counted(found.objects, 'object')} {'read' if deep else 'seen'}" if found.objects else ""
        click.echo(
            f"{name}: {counted(found.messages, 'message')} in {counted(found.blocks, 'block')} "
            f"checked{objects}: {verdict}"
        )
    return 0 if found.ok else 1
