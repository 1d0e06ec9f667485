"""The table of the outbox: its rows, and the intents and events that they hold."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.decoding import prepared
from millstream.stores.audit import group_table
from millstream.stores.audit.events import AuditEvent
from millstream.stores.audit.intents import AuditIntent
from millstream.stores.protocol import ItemInfo

outbox = sa.Table(
    "audit_outbox",
    group_table.metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("holder", EXACT_LONG_TEXT, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("store", NAME, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("content_id", CONTENT_ID, nullable=False),
    sa.Column("event", LONG_BYTES, nullable=False),
    sa.Column("item", LONG_BYTES),
    sa.Column("had_space", sa.Boolean, nullable=False),
    sa.Index("audit_outbox_state", "state", "number"),
    sa.Index("audit_outbox_target", "store", "space", "content_id"),
    sqlite_autoincrement=True,
)

COLUMNS = tuple(column.name for column in outbox.c)
TARGET = ("store", "space", "content_id")
_encoder = msgspec.json.Encoder()


class IntentState(enum.IntEnum):
    """The state of a row: begun, done, or done and given to the audit queue."""

    INTENDED = 0
    DONE = 1
    DELIVERED = 2


def target_of(event: AuditEvent) -> tuple[str, ...]:
    """The values of :data:`TARGET`."""
    return event.store, event.space, event.content_id


def row_of(intent: AuditIntent, state: IntentState = IntentState.INTENDED) -> tuple[Any, ...]:
    """The values of :data:`COLUMNS`."""
    event, item = intent.event, None if intent.item is None else msgspec.json.encode(intent.item)
    told = _encoder.encode(event)
    return event.number, intent.holder, int(state), event.at, *target_of(event), told, item, int(intent.had_space)


def intent_of(row: Any) -> AuditIntent:
    """The intent in *row*."""
    before = None if row.item is None else msgspec.json.decode(row.item, type=prepared(ItemInfo))
    return AuditIntent(event_of(row.number, row.event), row.holder, before, row.had_space)


def event_of(number: int, data: bytes) -> AuditEvent:
    """The event *number*, whose row holds *data*."""
    return msgspec.structs.replace(msgspec.json.decode(data, type=prepared(AuditEvent)), number=number)
