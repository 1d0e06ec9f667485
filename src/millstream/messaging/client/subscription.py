"""The subscription of a consumer to a topic: all messages, some tags, or those of a condition."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from millstream.messaging.protocol import v2


class Filter(msgspec.Struct, frozen=True):
    """``"*"``, tags (``"a || b"``), or with ``language="sql"`` a condition over properties (``"size > 3"``)."""

    expression: str = "*"
    language: Literal["tag", "sql"] = "tag"

    def to_wire(self) -> v2.FilterExpression:
        """The filter in the protocol."""
        kind: Any = v2.SQL if self.language == "sql" else v2.TAG
        return v2.FilterExpression(type=kind, expression=self.expression)


def read_filter(wanted: str | Filter) -> Filter:
    """*wanted* as a filter; text is tags."""
    return wanted if isinstance(wanted, Filter) else Filter(wanted)
