"""The status of one log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.log.kinds import Kind
from millstream.log.tiering.spec import TierInfo


class LogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a log. ``bytes`` as stored; times in microseconds, None in an empty log.

    ``first_id`` is the low-water mark: what lay below was trimmed. Bytes and times are those of whole blocks, of which
    the first may begin below it. ``consumers`` maps each consumer to its pointer; ``writer`` names the present writer.
    """

    name: str
    first_id: int
    last_id: int
    count: int
    blocks: int
    bytes: int
    min_event_time: int | None
    max_event_time: int | None
    min_received_at: int | None
    max_received_at: int | None
    durability: str
    consumers: Mapping[str, int]
    writer: str | None
    tier: TierInfo | None = None
    kind: Kind = "application"
