"""Many small items put into an audited store at once: what is intended, and what happened, in one transaction each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from millstream.stores.audit.events import AuditAction, AuditEvent
from millstream.stores.audit.intents import AuditBusyError, AuditIntent, IntentGroup
from millstream.stores.audit.outbox import AuditOutbox
from millstream.stores.bulk import (
    Bulk,
    FetchedItem,
    NewItem,
    Reading,
    fetches_at_once,
    find_absent,
    folder_of,
    listed_infos,
    reads_at_once,
    takes_files,
)
from millstream.stores.hashing import Digests
from millstream.stores.protocol import ItemInfo, ItemNotFoundError, StoreError, already_exists


class AuditContext(Protocol):
    """The interface that the decorator of the store provides."""

    name: str
    outbox: AuditOutbox

    def event(self, action: AuditAction, space: str, content_id: str = "", **said: Any) -> AuditEvent: ...

    def settle(self, intent: AuditIntent) -> None: ...


class AuditedBulk:
    """The :class:`~millstream.stores.bulk.Bulk` *bulk* of the store that *audited* decorates."""

    def __init__(self, bulk: Bulk, audited: AuditContext) -> None:
        self._bulk, self._audited = bulk, audited

    def infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        return self._bulk.infos(space, content_ids)

    def listed_infos(self, space: str, content_ids: Sequence[str]) -> Sequence[ItemInfo | StoreError]:
        return listed_infos(self._bulk, space, content_ids)

    @property
    def takes_files(self) -> bool:
        """See :func:`millstream.stores.bulk.takes_files`."""
        return takes_files(self._bulk)

    @property
    def folder(self) -> str | None:
        """See :func:`millstream.stores.bulk.folder_of`."""
        return folder_of(self._bulk)

    def read(self, space: str, content_ids: Sequence[str]) -> Sequence[bytes | StoreError]:
        return self._bulk.read(space, content_ids)

    @property
    def readings(self) -> Callable[..., Sequence[int | Reading | StoreError]] | None:
        """See :class:`millstream.stores.bulk.ReadsAtOnce`."""
        found = reads_at_once(self._bulk)
        return None if found is None else found.readings

    @property
    def fetch(self) -> Callable[..., Sequence[FetchedItem | StoreError]] | None:
        """See :class:`millstream.stores.bulk.FetchesAtOnce`."""
        found = fetches_at_once(self._bulk)
        return None if found is None else found.fetch

    def hashes(self, space: str, content_ids: Sequence[str]) -> Sequence[Digests | StoreError]:
        return self._bulk.hashes(space, content_ids)

    def put(self, space: str, items: Sequence[NewItem]) -> Sequence[ItemInfo | StoreError]:
        """An item of which a change is open is an :class:`AuditBusyError`: it is settled when it comes alone."""
        ids = [item.content_id for item in items]
        outbox, name = self._audited.outbox, self._audited.name
        with outbox.hold_all(name, space, ids):
            seen = outbox.newest()
            found = self._taken(space, ids)
            free = [item for item in items if item.content_id not in found]
            if free:
                group, busy = outbox.begin_group(self._group(space, free), seen=seen)
                found |= busy
                found |= self._put(space, [item for item in free if item.content_id not in busy], group)
        return [found[content_id] for content_id in ids]

    def _taken(self, space: str, ids: Sequence[str]) -> dict[str, ItemInfo | StoreError]:
        """The error of each item that is there, is being changed, or cannot be looked at."""
        found: dict[str, ItemInfo | StoreError] = {}
        absent = set(find_absent(self._bulk, space, ids))
        others = [content_id for content_id in ids if content_id not in absent]
        infos = self.listed_infos(space, others) if others else ()
        for content_id, one in zip(others, infos, strict=True):
            if isinstance(one, ItemInfo):
                found[content_id] = already_exists(content_id, space, f"store {self._audited.name!r}")
            elif not isinstance(one, ItemNotFoundError):
                found[content_id] = one
        for content_id in self._audited.outbox.open_of(self._audited.name, space, ids):
            found[content_id] = AuditBusyError(
                f"item {content_id!r} in space {space!r} of store {self._audited.name!r} is being changed by another "
                "process: try again later"
            )
        return found

    def _group(self, space: str, items: Sequence[NewItem]) -> IntentGroup:
        return IntentGroup(
            self._audited.event(AuditAction.ADD_CONTENT, space),
            self._audited.outbox.holder,
            [item.content_id for item in items],
            [item.sha256.lower() for item in items],
            [item.mimetype for item in items],
            [item.properties for item in items],
        )

    def _put(self, space: str, items: Sequence[NewItem], group: IntentGroup) -> dict[str, ItemInfo | StoreError]:
        """Put *items*, whose additions *group* has in the same order."""
        if not items:
            return {}
        try:
            answers = self._bulk.put(space, items)
        except Exception:
            self._settle(space, group.intents())
            raise
        stored = [group.addition(place, one) for place, one in enumerate(answers) if isinstance(one, ItemInfo)]
        self._audited.outbox.done_all(stored)
        if len(stored) < len(items):
            pairs = zip(group.intents(), answers, strict=True)
            self._settle(space, [intent for intent, one in pairs if isinstance(one, StoreError)])
        return dict(zip(group.content_ids, answers, strict=True))

    def _settle(self, space: str, intents: Sequence[AuditIntent]) -> None:
        """:meth:`settle`; what the store does not answer stays open."""
        with contextlib.suppress(StoreError):
            self.settle(space, intents)

    def settle(self, space: str, intents: Sequence[AuditIntent]) -> None:
        """Examine the items that *intents* would have added, and record which of them were.

        Raises :class:`StoreError` after all others if the store cannot tell it for one of them.
        """
        if not intents:
            return
        found = self._bulk.infos(space, [intent.event.content_id for intent in intents])
        done, gone, errors = list[AuditEvent](), list[int](), list[StoreError]()
        for intent, one in zip(intents, found, strict=True):
            if isinstance(one, ItemInfo) and intent.event.sha256 and one.checksum() == intent.event.sha256:
                done.append(_described(intent.event, one))
            elif isinstance(one, ItemNotFoundError):
                gone.append(intent.event.number)
            else:
                try:
                    self._audited.settle(intent)
                except StoreError as error:
                    errors.append(error)
        self._audited.outbox.done_all(done)
        self._audited.outbox.cancel(*gone)
        if errors:
            raise errors[0]


def _described(event: AuditEvent, info: ItemInfo) -> AuditEvent:
    return msgspec.structs.replace(event, sha256=info.checksum(), size=info.size, mimetype=info.mimetype)
