"""``millstream mill rebuild``: rebuild a lost or damaged table from the others."""

from __future__ import annotations

import click

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.audit import process_audits
from millstream.cli.mill.space_options import chosen_spaces
from millstream.mill.rebuild import RebuildCounts, rebuild_audit_log, rebuild_bit_log, rebuild_content_index
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores.audit import AuditedStore

CONTENT_INDEX, AUDIT_LOG, BIT_LOG = "content-index", "audit-log", "bit-log"


@example("millstream mill rebuild content-index second photos")
@click.command()
@click.argument("table", type=click.Choice([CONTENT_INDEX, AUDIT_LOG, BIT_LOG]), metavar="TABLE")
@click.argument("store", required=False)
@click.argument("space", required=False)
@data_options
@json_option
def rebuild(settings: Settings, table: str, store: str | None, space: str | None, as_json: bool) -> int:
    """Rebuild a lost or damaged TABLE for all spaces, the spaces of STORE, or one SPACE.

    TABLE is content-index, audit-log or bit-log. The content index (the manifest) is rebuilt from the audit log, or
    from the providers' records where a store is not audited; the audit log gets an event for each item that it does not
    know; the bit log is rebuilt from the records of the last checks. Nothing is deleted, and nothing is recorded as
    deleted. Exit code 1 if a store is unavailable, if nothing could be rebuilt, or if items were left out: their
    provider has no checksum of them, the audit log does not know them, or they no longer exist.
    """
    unlisted, left_out, spaces = list[str](), 0, 0
    with Node.open(settings) as node:
        process_audits(node)
        for place in chosen_spaces(node, store, space, known=node.mill.audit.log.spaces(), unlisted=unlisted):
            rebuilt = None if place[0] in unlisted else _rebuild(node, table, *place)
            if rebuilt is None:
                continue
            left_out, spaces = left_out + rebuilt.left_out, spaces + 1
            record_change(node, "rebuild", f"{table} of {rebuilt.store}/{rebuilt.space}", written=rebuilt.written)
            if as_json:
                print_json(rebuilt)
            else:
                right = f", {rebuilt.right:,} were right already" if rebuilt.right else ""
                counts = f"{rebuilt.written:,} of {rebuilt.looked_at:,} written{right}"
                what = counts if rebuilt.looked_at else "there is nothing to write"
                echo_line(f"{rebuilt.store}/{rebuilt.space}: {what}")
                if rebuilt.left_out:
                    echo_line(f"  {rebuilt.left_out:,} left out: {rebuilt.reason}")
        process_audits(node)
    return 1 if unlisted or left_out or not spaces else 0


def _rebuild(node: Node, table: str, store: str, space: str) -> RebuildCounts | None:
    audited = isinstance(node.stores.providers[store], AuditedStore)
    if table == CONTENT_INDEX:
        return rebuild_content_index(
            node.stores.providers, node.stores.manifest, node.mill.audit.log, store, space, audited=audited
        )
    if table == AUDIT_LOG:
        if not audited:
            click.echo(f"{store}/{space}: the store is not audited, so no audit log is kept of it", err=True)
            return None
        log, outbox, lookup = node.mill.audit.log, node.stores.outbox, node.mill.audit.lookup
        return rebuild_audit_log(node.stores.providers, log, outbox, lookup, store=store, space=space)
    latest = node.mill.reports.archive.latest(store, space)
    return rebuild_bit_log(
        node.stores.manifest, node.mill.checks.bit_log, store, space, since=latest.ended_at if latest else 0
    )
