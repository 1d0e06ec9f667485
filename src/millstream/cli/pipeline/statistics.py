"""``millstream pipeline statistics``: sizes of spaces, and their changes."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import counted, size_text
from millstream.core.clock import MICROSECONDS
from millstream.mill.reports.statistics import SpaceSize
from millstream.node import Node
from millstream.settings import Settings


@example("millstream pipeline statistics")
@click.command("statistics")
@click.option("--name", help="Name of a listing of `pipeline inventory` to use (default: a new one).")
@click.option("--space", "spaces", multiple=True, metavar="SPACE", help="Only this space; repeatable.")
@json_option
@data_options
@master_option
def statistics_command(settings: Settings, *, name: str | None, spaces: tuple[str, ...], as_json: bool) -> int:
    """List all stores, and print the items and bytes of each space, and what changed.

    Changes are those since the previous listing. The sizes are stored as those of `mill statistics`. Exit code 1 if a
    store could not be listed.
    """
    from millstream.pipeline.jobs.inventory import run_inventory
    from millstream.pipeline.jobs.statistics import latest_before, space_statistics

    with Node.open(settings) as node, node.spark.session(registered=False) as spark, shown(spark, "statistics"):
        now, jobs = node.clock.now(), node.spark.jobs
        run = name or datetime.fromtimestamp(now / MICROSECONDS, UTC).isoformat(timespec="milliseconds")
        listed = run_inventory(spark, jobs, run, settings.store_urls, spaces=spaces or None, clock=node.clock,
            has_items=node.stores.manifest.has_items,
        )  # fmt: skip
        found = space_statistics(spark, listed, latest_before(jobs, listed.record), clock=node.clock)
        broken = listed.unlisted()
        whole = {(each.store, each.space) for each in broken}
        for figures in found:
            if (figures.store, figures.space) not in whole:
                node.stores.statistics.add(SpaceSize(figures.store, figures.space, now, figures.items, figures.bytes))
    for figures in found:
        if as_json:
            print_json(figures)
            continue
        since = ""
        if figures.added is not None:
            since = f"; {figures.added:,} new, {figures.removed:,} gone, {figures.changed:,} changed since"
        echo_line(
            f"{figures.store}/{figures.space}: {counted(figures.items, 'item')}, {size_text(figures.bytes)}{since}"
        )
    for each in broken:
        echo_line(f"{each.store}/{each.space or '*'}: the listing stopped before its end: {each.error}", err=True)
    return 1 if broken else 0
