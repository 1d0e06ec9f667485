"""Changes that were begun: one by one, or many new items of a space together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress

import msgspec

from millstream.core.errors import BusyError
from millstream.stores.audit.events import AuditEvent
from millstream.stores.protocol import ItemInfo, StoreError


class AuditBusyError(StoreError, BusyError):
    """Another process is changing this item, or died over it."""


class AuditIntent(msgspec.Struct, frozen=True, gc=False):
    """A change that was begun: what it is to be, and what was there before it (an item, a space, or neither)."""

    event: AuditEvent
    holder: str
    item: ItemInfo | None = None
    had_space: bool = False


class IntentGroup(msgspec.Struct, frozen=True, gc=False):
    """New items of one space whose additions are begun together, in columns; none of them is there before.

    ``event`` is the first addition without what the columns have: numbers and times of the others follow on from its
    own, one by one. ``sums`` are SHA-256 (hex).
    """

    event: AuditEvent
    holder: str
    content_ids: Sequence[str]
    sums: Sequence[str]
    mimetypes: Sequence[str]
    properties: Sequence[Mapping[str, str]]

    @property
    def last(self) -> int:
        """The number of the last addition."""
        return self.event.number + len(self.content_ids) - 1

    def without(self, content_ids: Collection[str]) -> IntentGroup:
        """The group without some of its items; to be asked before it has numbers."""
        kept = [name not in content_ids for name in self.content_ids]
        return IntentGroup(
            self.event,
            self.holder,
            list(compress(self.content_ids, kept)),
            list(compress(self.sums, kept)),
            list(compress(self.mimetypes, kept)),
            list(compress(self.properties, kept)),
        )

    def intents(self) -> list[AuditIntent]:
        """Each addition by itself."""
        return [AuditIntent(self.addition(place), self.holder) for place in range(len(self.content_ids))]

    def addition(self, place: int, done: ItemInfo | None = None) -> AuditEvent:
        """The event of the item at *place*: as it is to be, or as it was *done*."""
        event, name = self.event, self.content_ids[place]
        sha256, mimetype = (
            (self.sums[place], self.mimetypes[place]) if done is None else (done.checksum(), done.mimetype)
        )
        return AuditEvent(
            event.action, event.user, event.at + place, event.account, event.store, event.store_type, event.space, name,
            sha256, None if done is None else done.size, mimetype, self.properties[place], None, None,
            event.number + place,
        )  # fmt: skip


def busy_error(store: str, space: str, content_id: str) -> AuditBusyError:
    """The error of an item, or of a space where *content_id* is empty, that another process is changing."""
    what = f"{content_id!r} in space {space!r}" if content_id else f"the space {space!r}"
    return AuditBusyError(
        f"another process is changing {what} of store {store!r}: try again; if that process "
        "crashed on another machine, stop all processes that write to the stores, and run "
        "`millstream mill audit --recover`"
    )
