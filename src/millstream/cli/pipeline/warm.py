"""``millstream pipeline warm``: let Spark start faster."""

from __future__ import annotations

import click

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.core.amounts import size_text
from millstream.node import Node
from millstream.settings import Settings


@example("millstream pipeline warm")
@click.command("warm")
@json_option
@data_options
@master_option
def warm_command(settings: Settings, *, as_json: bool) -> None:
    """Write an archive of Spark's classes into the node's folder, so that later sessions start faster.

    It is valid for this Java and Spark version, and takes several hundred megabytes.
    """
    from millstream.pipeline.session import warm_up

    with Node.open(settings, create=True) as node:
        archive, before, after = warm_up(node.folder / "spark", node.spark.options, clock=node.clock)
    size = archive.stat().st_size
    if as_json:
        print_json({"archive": str(archive), "bytes": size, "seconds_before": before, "seconds_after": after})
    else:
        click.echo(f"a session with its first query: {before:.1f} s before, {after:.1f} s now ({size_text(size)})")
