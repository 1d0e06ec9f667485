"""``millstream pipeline audit``: replay every anchor from its files, in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import counted, size_text
from millstream.core.errors import InputError
from millstream.node import Node
from millstream.settings import Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.jobs.audit import AnchorAuditResult


@example("millstream pipeline audit --identifiers")
@click.command("audit")
@click.option(
    "--peer",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR",
    help="Folder of a second node to compare with.",
)
@click.option("--identifiers/--no-identifiers", default=True, show_default=True, help="Also resolve every identifier.")
@json_option
@data_options
@master_option
def audit_command(settings: Settings, *, peer: Path | None, identifiers: bool, as_json: bool) -> int:
    """Verify every hash, Merkle root, rule and ledger link, and resolve every identifier.

    Every anchored file is read. The results are compared with the node's index, and with --peer with the ledger and
    identifiers of a second node. Exit code 1 if anything differs.
    """
    with (
        Node.open(settings) as node,
        _peer(peer, settings) as other,
        node.spark.session(registered=False) as spark,
        shown(spark, "audit"),
    ):
        audits = list(_audits(spark, node, other, identifiers=identifiers))
    for audited in audits:
        _print_json(audited) if as_json else _show(audited)
    return 1 if any(audited.findings for audited in audits) else 0


@contextlib.contextmanager
def _peer(folder: Path | None, own: Settings) -> Iterator[Node | None]:
    if folder is None:
        yield None
        return
    settings, _ = load_settings({"data": str(folder)}, environment={})  # the variables are those of *own*
    if (settings.log_url, settings.node.database) == (own.log_url, own.node.database):
        raise InputError(
            f"--peer {folder} has the log store and the database of this node: give the folder of another node, with "
            "its own settings file"
        )
    with Node.open(settings) as node:
        yield node


def _audits(spark: SparkSession, node: Node, other: Node | None, *, identifiers: bool) -> Iterator[AnchorAuditResult]:
    from millstream.pipeline.jobs.audit import audit_anchors, audit_identifiers

    yield audit_anchors(
        spark,
        node.spark.jobs,
        node.anchoring.ledger,
        node.anchoring.cas_url,
        index=node.anchoring.observer.index,
        peer=other.anchoring.ledger if other else None,
        clock=node.clock,
    )
    if identifiers and node.registry.ledger.head() is not None:
        yield audit_identifiers(
            spark,
            node.registry.ledger,
            node.anchoring.cas_url,
            node.registry.instance.versions,
            node.registry.instance.history,
            peer=other.registry.instance.history if other else None,
            clock=node.clock,
        )


def _print_json(audited: AnchorAuditResult) -> None:
    findings: Sequence[object] = [msgspec.to_builtins(finding) for finding in audited.findings]
    print_json(msgspec.to_builtins(audited.record) | {"findings": findings})


def _show(audited: AnchorAuditResult) -> None:
    record = audited.record
    counts = ", ".join(f"{count:,} {name}" for name, count in record.counts.items())
    click.echo(
        f"{record.job}: {counted(record.rows_in, 'anchor')}, {size_text(record.bytes)}, {counts}; "
        f"{record.seconds:.1f} s"
    )
    for finding in audited.findings:
        place = f" (anchor {finding.number})" if finding.number is not None else ""
        echo_line(f"  {finding.what}: {finding.reason}{place}")
