"""``millstream log tier``: moving older messages of a log to an object store."""

from __future__ import annotations

import click
import msgspec

from millstream.cli.change_log import record_freed_space
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.cli.parameter_types import Duration, SizeType
from millstream.core.amounts import counted, size_text
from millstream.core.decoding import prepared
from millstream.core.errors import InputError
from millstream.core.secrets import safe_url
from millstream.log import Log, Tiering
from millstream.settings import Settings


@example("millstream log tier weather --to s3://archive/tiers --keep-age 30d")
@click.command()
@click.argument("name")
@click.option(
    "--to",
    "url",
    metavar="URL",
    help="Target URL, such as s3://bucket/prefix or file:///folder; required at the first run.",
)
@click.option("--segment-bytes", type=SizeType(), help="Approximate object size (default: 128MiB).")
@click.option("--keep-age", type=Duration(), help="Keep messages local for this time, such as 1d, after their receipt.")
@click.option("--keep-bytes", type=SizeType(), help="Minimum size of the newest messages to keep local, such as 10GB.")
@click.option(
    "--parquet/--no-parquet", default=None, help="Also write the messages of each object as Parquet (default: no)."
)
@click.option("--partial", is_flag=True, help="Also move older messages that do not fill an object.")
@click.option("--leftovers", is_flag=True, help="List objects that interrupted runs left behind; move nothing.")
@click.option("--remove-leftovers", is_flag=True, help="Delete the objects that --leftovers lists; move nothing.")
@json_option
@store_options
def tier(
    settings: Settings,
    name: str,
    partial: bool,
    leftovers: bool,
    remove_leftovers: bool,
    as_json: bool,
    **changes: object,
) -> None:
    """Move older messages of the log NAME to an object store; readers still find them.

    Older messages are those that neither --keep-age nor --keep-bytes keeps local; without both, all. Each object is
    read back and compared before local space is freed. URL and rules are stored with the log, and apply to later runs
    until they give others. The next run finishes an interrupted one. Objects that an interrupted run left behind are
    not part of the log; they are not deleted automatically, because an older backup of this store may name them.
    """
    if leftovers or remove_leftovers:
        _clear_up(settings, name, remove=remove_leftovers, as_json=as_json)
        return
    with existing_log(settings, name, create=False) as found:
        rules = {key: value for key, value in changes.items() if value is not None}
        _keep_rules(found, rules)
        done = found.move_blocks(partial=partial)
        there = found.info().tier
    url = None if there is None else safe_url(there.url)
    record_freed_space(settings, "tier", f"log {name}", messages=done.messages, url=url, rules=sorted(rules))
    if as_json:
        print_json(done)
        return
    freed = size_text(done.freed_bytes)
    click.echo(f"{name}: {counted(done.messages, 'message')} moved in {counted(done.objects, 'object')}, {freed} freed")
    if there is not None:
        click.echo(f"tier      {size_text(there.bytes)} in {counted(there.objects, 'object')} at {there.url}")


def _clear_up(settings: Settings, name: str, *, remove: bool, as_json: bool) -> None:
    with existing_log(settings, name, create=False, read_only=not remove) as log:
        names = log.remove_leftovers() if remove else log.leftovers()
    if remove:
        record_freed_space(settings, "remove leftovers", f"log {name}", objects=len(names))
    if as_json:
        print_json({"log": name, "leftovers": names, "removed": remove})
        return
    for each in names:
        click.echo(each)
    click.echo(f"{name}: {counted(len(names), 'object')} {'removed' if remove else 'left over'}", err=True)


def _keep_rules(log: Log, changes: dict[str, object]) -> None:
    before = log.tiering
    if before is None and "url" not in changes:
        raise InputError(f"log {log.name} has no tier yet: give the URL of its object store with --to")
    if changes:
        kept = {} if before is None else msgspec.structs.asdict(before)
        log.set_tiering(msgspec.convert(kept | changes, prepared(Tiering)))
