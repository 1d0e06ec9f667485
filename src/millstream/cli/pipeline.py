"""``millstream pipeline``: the jobs that run on Spark."""

from __future__ import annotations

import click

from millstream.cli.pipeline_anchor import anchor_command
from millstream.cli.pipeline_audit import audit_command
from millstream.cli.pipeline_batch import batch_command
from millstream.cli.pipeline_duplication import duplication_command
from millstream.cli.pipeline_ingest import ingest_command
from millstream.cli.pipeline_integrity import integrity_command
from millstream.cli.pipeline_inventory import inventory_command
from millstream.cli.pipeline_operations import operations_command
from millstream.cli.pipeline_package import package_command
from millstream.cli.pipeline_report import report_command
from millstream.cli.pipeline_statistics import statistics_command
from millstream.cli.pipeline_verify import verify_command
from millstream.cli.pipeline_warm import warm_command


@click.group()
def pipeline() -> None:
    """Run jobs on Spark, on this machine or on the master in the settings."""


pipeline.add_command(anchor_command)
pipeline.add_command(audit_command)
pipeline.add_command(batch_command)
pipeline.add_command(duplication_command)
pipeline.add_command(ingest_command)
pipeline.add_command(integrity_command)
pipeline.add_command(inventory_command)
pipeline.add_command(operations_command)
pipeline.add_command(package_command)
pipeline.add_command(report_command)
pipeline.add_command(statistics_command)
pipeline.add_command(verify_command)
pipeline.add_command(warm_command)
