"""``millstream pipeline``: the jobs that run on Spark."""

from __future__ import annotations

import click

from millstream.cli.command_group import CommandGroup

TABLES = {
    "Messages": {
        "ingest": (
            "millstream.cli.pipeline.ingest:ingest_command",
            "Append the rows of files to a log, in parallel; files whose content LOG already has are skipped.",
        ),
        "batch": (
            "millstream.cli.pipeline.batch:batch_command",
            "Batch the messages of LOG by event time, by the rules in the settings.",
        ),
        "verify-batches": (
            "millstream.cli.pipeline.verify_batches:verify_command",
            "Batch a range of LOG again, and compare the result with the existing batches.",
        ),
        "anchor": (
            "millstream.cli.pipeline.anchor:anchor_command",
            "Batch the messages of LOG, write the batch files, and anchor each batch once.",
        ),
        "operations": (
            "millstream.cli.pipeline.operations:operations_command",
            "Submit and anchor the operations on identifiers in LOG, one JSON object per message, each once.",
        ),
        "audit": (
            "millstream.cli.pipeline.audit:audit_command",
            "Verify every hash, Merkle root, rule and ledger link, and resolve every identifier.",
        ),
    },
    "Copies": {
        "inventory": (
            "millstream.cli.pipeline.inventory:inventory_command",
            "List the spaces of all stores into Parquet files.",
        ),
        "statistics": (
            "millstream.cli.pipeline.statistics:statistics_command",
            "List all stores, and print the items and bytes of each space, and what changed.",
        ),
        "duplication": (
            "millstream.cli.pipeline.duplication:duplication_command",
            "Compare the copies of spaces by policy, and queue the differences for `millstream mill work`.",
        ),
        "integrity": (
            "millstream.cli.pipeline.integrity:integrity_command",
            "Read and verify every copy on every store.",
        ),
        "report": (
            "millstream.cli.pipeline.report:report_command",
            "Print the last integrity report on SPACE of STORE.",
        ),
    },
    "Spark": {
        "package": (
            "millstream.cli.pipeline.package:package_command",
            "Write this package to FILE.zip, for `spark-submit --py-files FILE.zip JOB.py`.",
        ),
        "warm": (
            "millstream.cli.pipeline.warm:warm_command",
            "Write an archive of Spark's classes into the node's folder, so that later sessions start faster.",
        ),
    },
}


@click.group(cls=CommandGroup, tables=TABLES)
def pipeline() -> None:
    """Run jobs on Spark, on this machine or on the master in the settings."""
