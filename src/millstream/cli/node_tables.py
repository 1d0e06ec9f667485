"""All tables of a node's database, including those of unused parts."""

from __future__ import annotations

import sqlalchemy as sa

from millstream.anchoring import index, journal_tables
from millstream.anchoring.database import metadata as anchoring
from millstream.anchoring.registry import tables as registry
from millstream.anchoring.timestamps import timestamp_tables
from millstream.anchoring.transparency import tree_tables
from millstream.anchoring.witness import cosignature_tables
from millstream.mill import manifest_table
from millstream.mill.adoption import catalog
from millstream.mill.audit import audit_log
from millstream.mill.duplication import change_guard, held_items
from millstream.mill.integrity import bit_log
from millstream.mill.repair import repair_log
from millstream.mill.reports import statistics
from millstream.queue import task_rows
from millstream.rest import operator_audit_log, sign_ins
from millstream.status import history
from millstream.stores.audit import outbox

_WITH_TABLES = (
    audit_log, bit_log, catalog, change_guard, held_items, history, manifest_table, operator_audit_log, registry,
    repair_log, sign_ins, statistics, task_rows,
)  # fmt: skip
_OF_ANCHORING = (index, journal_tables, timestamp_tables, tree_tables, cosignature_tables)
"""Modules that add their tables to :data:`anchoring`."""


def node_tables() -> list[sa.Table]:
    """The tables by name, without those about the use of the database itself."""
    found = [anchoring, *(module.metadata for module in _WITH_TABLES)]
    tables = [table for metadata in found for table in metadata.tables.values()]
    return sorted([*tables, *outbox.TABLES], key=lambda table: table.name)
