"""Names of runs, and the options of jobs over stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from millstream.core.clock import MICROSECONDS
from millstream.node import Node

name_option = click.option(
    "--name",
    help="Name of the run; a completed run is not repeated (default: that of an interrupted run of the same job, or a "
    "new one).",
)
space_option = click.option("--space", "spaces", multiple=True, metavar="SPACE", help="Only this space; repeatable.")


def run_name(node: Node, job: str, member: str, spaces: tuple[str, ...], **more: Any) -> str:
    """The interrupted run of *job* on the same stores and spaces; otherwise a new run, named by the time."""
    from millstream.pipeline.output.job_folder import unfinished

    wanted = {"stores": node.settings.store_urls, "spaces": sorted(spaces) or None, **more}
    for inputs in unfinished(node.spark.jobs, job):
        if inputs == {member: inputs[member], **wanted}:
            return str(inputs[member])
    return datetime.fromtimestamp(node.clock.now() / MICROSECONDS, UTC).isoformat(timespec="milliseconds")
