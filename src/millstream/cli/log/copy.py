"""``millstream log copy``: copy a log from one store to another."""

from __future__ import annotations

import click

from millstream.cli.common import json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.log import LogSpec, copy_consumers, copy_log
from millstream.stores.tiers import open_log_store


@example("millstream log copy sqlite:///old/log.db segments:///srv/new weather --consumers")
@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("name")
@click.option(
    "--bodies", is_flag=True, help="Copy only the bodies, into a store without other fields (mysql://…?layout=nerve)."
)
@click.option("--consumers", is_flag=True, help="Also copy the positions of consumers.")
@json_option
def copy(source: str, target: str, name: str, bodies: bool, consumers: bool, as_json: bool) -> None:
    """Copy the log NAME between two stores, such as sqlite:///log.db and segments:///folder.

    FROM and TO are the URLs of the stores. Ids, times and headers are kept, and every batch is read back and compared.
    The same command resumes an interrupted copy, and adds messages that were written since. Messages of a store without
    times (mysql://…?layout=nerve) get the time of the copy.
    """
    with open_log_store(source, read_only=True) as old, open_log_store(target) as new:
        found = old.log(LogSpec(name), create=False)
        made = new.log_to_copy(found)
        done = copy_log(found, made, bodies_only=bodies)
        if consumers:
            copy_consumers(found, made)
    if as_json:
        print_json(done)
    elif done.messages:
        click.echo(
            f"{name}: {counted(done.messages, 'message')} copied and compared, ids {done.first_id} to {done.last_id}"
        )
    else:
        click.echo(f"{name}: nothing to copy, the copy has all {counted(done.last_id, 'message')}")
