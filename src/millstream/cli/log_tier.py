"""``millstream log tier``: moving older messages of a log to an object store."""

from __future__ import annotations

import click
import msgspec

from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.parameter_types import Duration, SizeType
from millstream.core.amounts import size_text
from millstream.core.errors import InputError
from millstream.log import Log, LogSpec, Tiering
from millstream.settings import Settings
from millstream.stores.tiers import open_store


@click.command()
@click.argument("name")
@click.option("--to", "url", metavar="URL", help="Where to, such as s3://bucket/prefix or file:///folder.")
@click.option("--segment-bytes", type=SizeType(), help="About so much makes an object (default 128 MiB).")
@click.option("--keep-age", type=Duration(), help="Keep what was received since, such as 1d.")
@click.option("--keep-bytes", type=SizeType(), help="Keep at least so much of the newest.")
@click.option("--parquet/--no-parquet", default=None, help="Put the same messages beside each object as Parquet.")
@click.option("--partial", is_flag=True, help="Move what is due even if it does not fill an object.")
@click.option("--leftovers", is_flag=True, help="List the objects that runs which were killed have left; move nothing.")
@click.option("--remove-leftovers", is_flag=True, help="Delete those; move nothing.")
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
    """Move older messages of the log NAME to an object store; readers find them there.

    Each object is read back and compared before anything is freed here. URL and rules are kept with the log: without
    them what was said last holds. A run that was interrupted is finished by the next. What it may leave at the object
    store is no part of the log; nothing deletes it by itself, since an older copy of this store may name it.
    """
    if leftovers or remove_leftovers:
        _clear_up(settings, name, remove=remove_leftovers, as_json=as_json)
        return
    with open_store(settings.log_url, create=False) as store:
        found = store.log(LogSpec(name), create=False)
        _keep_rules(found, {key: value for key, value in changes.items() if value is not None})
        done = found.move_blocks(partial=partial)
        there = found.info().tier
    if as_json:
        print_json(done)
        return
    freed = size_text(done.freed_bytes)
    click.echo(f"{name}: {done.messages:,} messages moved in {done.objects:,} objects, {freed} freed")
    if there is not None:
        click.echo(f"tier      {size_text(there.bytes)} in {there.objects:,} objects at {there.url}")


def _clear_up(settings: Settings, name: str, *, remove: bool, as_json: bool) -> None:
    with open_store(settings.log_url, create=False, read_only=not remove) as store:
        log = store.log(LogSpec(name), create=False)
        names = log.remove_leftovers() if remove else log.leftovers()
    if as_json:
        print_json({"log": name, "leftovers": names, "removed": remove})
        return
    for each in names:
        click.echo(each)
    click.echo(f"{name}: {len(names):,} objects {'removed' if remove else 'left over'}", err=True)


def _keep_rules(log: Log, changes: dict[str, object]) -> None:
    before = log.tiering
    if before is None and "url" not in changes:
        raise InputError(f"say where the messages of {log.name} are to go: --to URL")
    if changes:
        kept = {} if before is None else msgspec.structs.asdict(before)
        log.set_tiering(msgspec.convert(kept | changes, Tiering))
