"""``millstream pipeline inventory``: list all stores on Spark."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.common import data_options, json_option
from millstream.cli.examples import example
from millstream.cli.pipeline.adopting import adopt_on_spark, print_adopted
from millstream.cli.pipeline.batch import print_record
from millstream.cli.pipeline.run_options import name_option, run_name, space_option
from millstream.cli.protect_parts import checksums_option
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.node import Node
from millstream.settings import Settings


@example("millstream pipeline inventory --space photos")
@click.command("inventory")
@name_option
@space_option
@click.option("--changes", is_flag=True, help="Also write the changes since the previous listing.")
@click.option("--adopt", is_flag=True, help="Read new items of folders and buckets that other programs write.")
@click.option("--read", "read_all", type=click.Choice(["all"]), help="With --adopt: read every item again.")
@checksums_option
@json_option
@data_options
@master_option
def inventory_command(
    settings: Settings,
    *,
    name: str | None,
    spaces: tuple[str, ...],
    changes: bool,
    adopt: bool,
    read_all: str | None,
    checksums: Path | None,
    as_json: bool,
) -> int:
    """List the spaces of all stores into Parquet files.

    With --changes, further Parquet files have a row for each item that was added, removed or changed (size or time)
    since the previous listing of the same stores and spaces. With --adopt, the folders and buckets that other programs
    write are adopted too: `millstream protect` does not read them again. --read all and --checksums require --adopt,
    and --checksums a single space. Exit code 1 if a store could not be listed, or if adoption has findings.
    """
    from millstream.pipeline.jobs.changes import find_changes
    from millstream.pipeline.jobs.inventory import run_inventory
    from millstream.pipeline.jobs.statistics import latest_before

    if not adopt and (read_all or checksums is not None):
        raise click.UsageError("--read and --checksums require --adopt: add --adopt")
    with Node.open(settings) as node, node.spark.session(registered=False) as spark, shown(spark, "inventory"):
        jobs = node.spark.jobs
        run = name or run_name(node, "inventory", "snapshot", spaces)
        found = run_inventory(spark, jobs, run, settings.store_urls, spaces=spaces or None, clock=node.clock,
            has_items=node.stores.manifest.has_items,
        )  # fmt: skip
        before = latest_before(jobs, found.record) if changes else None
        changed = find_changes(spark, jobs, found, before, clock=node.clock) if before is not None else None
        adopted = []
        if adopt:
            adopted = adopt_on_spark(node, spark, spaces, read_all=bool(read_all), checksums=checksums)
    print_record(found.record, found.data, as_json=as_json, reused=found.reused)
    if changed is not None:
        print_record(changed.record, changed.data, as_json=as_json, reused=changed.reused)
    elif changes:
        click.echo("there is no earlier listing to compare with", err=True)
    print_adopted(adopted, as_json=as_json)
    for unlisted in found.unlisted():
        click.echo(
            f"{unlisted.store}/{unlisted.space or '*'}: the listing stopped before its end: {unlisted.error}", err=True
        )
    return 1 if found.unlisted() or any(one.adoption.findings for one in adopted) else 0
