"""The location of a content item."""

from __future__ import annotations

import msgspec


class ItemRef(msgspec.Struct, frozen=True):
    """A content item of a space in one store; its text is for error messages."""

    store: str
    space: str
    content_id: str

    def __str__(self) -> str:
        return f"{self.content_id!r} in space {self.space!r} of store {self.store!r}"
