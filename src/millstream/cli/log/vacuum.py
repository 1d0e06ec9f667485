"""``millstream log vacuum``: gives the space of trimmed messages back to the file system."""

from __future__ import annotations

import click

from millstream.cli.change_log import record_freed_space
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.log import VacuumResult
from millstream.settings import Settings


@example("millstream log vacuum weather")
@click.command()
@click.argument("name")
@json_option
@store_options
def vacuum(settings: Settings, name: str, as_json: bool) -> None:
    """Give the space of trimmed messages of the log NAME back to the file system.

    For a log in an SQLite file, such as log.db: the file keeps that space for new messages until it is vacuumed, and
    it is vacuumed with all logs in it. Stop their writers first, such as `millstream serve`. Processes that read are
    not disturbed. A crash or a power loss loses nothing. The disk must have room for two copies of what remains; if
    SQLITE_TMPDIR names a folder on another disk, for one copy on each.

    Segment files and objects in a bucket are deleted when they are trimmed, so there is nothing to do. For a log in a
    database, the SQL statements that the administrator of the server can execute are printed.
    """
    with existing_log(settings, name, create=False) as log:
        done = log.vacuum()
    if done.sizes is not None:
        facts = {"bytes_before": done.sizes.before, "bytes_after": done.sizes.after}
        record_freed_space(settings, "vacuum", f"log {name}", **facts)
    if as_json:
        print_json(done)
    else:
        _print(done)


def _print(done: VacuumResult) -> None:
    if done.sizes is not None:
        click.echo(f"{done.log}: the file {done.sizes}")
    elif done.statements:
        click.echo(
            f"{done.log}: nothing was changed. The database keeps the space for new messages. To free it, the "
            "administrator of the server can execute the following, which needs space for a copy of the table and may "
            "lock it meanwhile:"
        )
        for statement in done.statements:
            click.echo(f"{statement};")
    else:
        click.echo(f"{done.log}: nothing to do: this kind of store frees space when a log is trimmed")
