"""The decorator that audits a store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import msgspec
import sqlalchemy as sa

from millstream.core.shown_commands import arguments
from millstream.stores.audit.bulk import AuditedBulk
from millstream.stores.audit.events import NEW_BYTES, AuditAction, AuditEvent
from millstream.stores.audit.holders import HolderState
from millstream.stores.audit.intents import AuditIntent
from millstream.stores.audit.outbox import AuditOutbox
from millstream.stores.bulk import bulk_of
from millstream.stores.checks import check_acls, check_mimetype, check_properties
from millstream.stores.hashing import hash_stream
from millstream.stores.names import check_content_id, check_space
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    DamagedRecordError,
    ItemInfo,
    ItemNotFoundError,
    SpaceAccess,
    SpaceNotFoundError,
    Store,
    StoreError,
    StoreUnavailableError,
    space_not_found,
)
from millstream.stores.sources import absence_question
from millstream.stores.wrapper import Answer, StoreWrapper

_log = logging.getLogger(__name__)


class AuditedStore(StoreWrapper):
    """The store *store*, called *name*, with every change in *outbox*, as done by *user* for *account*.

    The methods are those of :class:`Store`, and its URL is that of the store itself. Changes of one item come one after
    the other. A change whose outcome is not known (the provider did not answer, the process died) is settled before the
    next change of the same item, or by :meth:`recover`; while the process that began it lives, the item is busy to all
    others. All that is written to the store has to be written through such decorators on the same database.
    """

    def __init__(
        self, store: Store, outbox: AuditOutbox, name: str, *, account: str = "local", user: str = "n/a"
    ) -> None:
        super().__init__(store)
        self.outbox, self.name = outbox, name
        self._account, self._user = account, user
        inner = bulk_of(store)
        self.bulk: AuditedBulk | None = None if inner is None else AuditedBulk(inner, self)

    def create_space(self, space: str) -> None:
        with self._changing(AuditAction.CREATE_SPACE, space) as (event, seen):
            if not self.store.has_space(space):
                self._change(self.outbox.begin(event, seen=seen), lambda _: self.store.create_space(space))

    def delete_space(self, space: str) -> None:
        with self._changing(AuditAction.DELETE_SPACE, space) as (event, seen):
            if not self.store.has_space(space):
                raise space_not_found(space, self.url)
            intent = self.outbox.begin(event, had_space=True, seen=seen)
            self._change(intent, lambda _: self.store.delete_space(space))

    def set_space_acls(self, space: str, acls: Mapping[str, SpaceAccess]) -> None:
        kept = check_acls(acls)
        with self._changing(AuditAction.SET_SPACE_ACLS, space, acls=kept) as (event, seen):
            if self._space_acls(space) != kept:
                intent = self.outbox.begin(event, had_space=True, seen=seen)
                self._change(intent, lambda _: self.store.set_space_acls(space, kept))

    def put(
        self,
        space: str,
        content_id: str,
        source: BinaryIO,
        *,
        mimetype: str = DEFAULT_MIMETYPE,
        properties: Mapping[str, str] | None = None,
        sha256: str | None = None,
        create_only: bool = False,
        require: Callable[[], object] | None = None,
    ) -> ItemInfo:
        """As :meth:`Store.put`. *require* is called once all earlier changes of the item have ended and no other can
        begin; what it raises prevents the change."""
        check_mimetype(mimetype)
        said = {"mimetype": mimetype, "properties": check_properties(properties)}
        with self._changing(AuditAction.ADD_CONTENT, space, content_id, **said) as (plain, seen):
            if require is not None:
                require()
            before = self._look_before(space, content_id)
            event = msgspec.structs.replace(plain, sha256=(sha256 or _known_sum(source) or "").lower() or None)

            def put(intent: AuditIntent) -> ItemInfo:
                stream = source if event.sha256 else cast(BinaryIO, _Witness(source, intent.event, self.outbox))
                return self.store.put(
                    space, content_id, stream, mimetype=mimetype, properties=properties, sha256=event.sha256,
                    create_only=create_only,
                )  # fmt: skip

            return self._change(self.outbox.begin(event, item=before, seen=seen), put)

    def set_properties(self, space: str, content_id: str, properties: Mapping[str, str]) -> ItemInfo:
        said = {"properties": check_properties(properties)}
        with self._changing(AuditAction.SET_CONTENT_PROPERTIES, space, content_id, **said) as (event, seen):
            before = self.store.info(space, content_id)
            return self._change(
                self.outbox.begin(event, item=before, seen=seen),
                lambda _: self.store.set_properties(space, content_id, properties),
            )

    def copy(self, space: str, content_id: str, to_space: str, to_content_id: str) -> ItemInfo:
        source = self.store.info(space, content_id)
        said = {"source_space": space, "source_content_id": content_id, **_described(source)}
        said["properties"] = dict(source.properties)
        with self._changing(AuditAction.COPY_CONTENT, to_space, to_content_id, **said) as (event, seen):
            before = self._look_before(to_space, to_content_id)
            return self._change(
                self.outbox.begin(event, item=before, seen=seen),
                lambda _: self.store.copy(space, content_id, to_space, to_content_id),
            )

    def delete(self, space: str, content_id: str) -> None:
        with self._changing(AuditAction.DELETE_CONTENT, space, content_id) as (plain, seen):
            before = self._look_before(space, content_id, required=True)
            event = plain if before is None else msgspec.structs.replace(plain, **_described(before))
            intent = self.outbox.begin(event, item=before, seen=seen)
            self._change(intent, lambda _: self.store.delete(space, content_id))

    def recover(self) -> int:
        """Settle every open change of this store, of any process. No other process may be writing. Returns how many.

        Raises :class:`StoreError` where the store does not answer.
        """
        intents = [intent for intent in self.outbox.open_intents(others=True) if intent.event.store == self.name]
        self._settle_all_left(intents)
        return len(intents)

    def settle_ended(self) -> int:
        """Settle the open changes of this store that were begun by processes of this machine which have ended.

        Raises :class:`StoreError` where the store does not answer; what is left stays open. Returns how many.
        """
        intents = [
            intent
            for intent in self.outbox.open_intents(others=True)
            if intent.event.store == self.name and self._has_ended(intent.holder)
        ]
        self._settle_all_left(intents)
        return len(intents)

    def event(self, action: AuditAction, space: str, content_id: str = "", **said: Any) -> AuditEvent:
        """The event of *action*, with what is *said* of it, as it is to happen."""
        store_type = self.url.partition(":")[0]
        return AuditEvent(action, self._user, 0, self._account, self.name, store_type, space, content_id, **said)

    @contextlib.contextmanager
    def _changing(
        self, action: AuditAction, space: str, content_id: str | None = None, **said: Any
    ) -> Iterator[tuple[AuditEvent, int]]:
        """Hold the item (or the space) and settle what is open of it; gives the event that is to happen, and the number
        of the newest one, before anybody looks at the item."""
        check_space(space)
        target = "" if content_id is None else check_content_id(content_id)
        event = self.event(action, space, target, **said)
        with self.outbox.hold(self.name, space, target):
            for intent in self.outbox.open_intents(event, others=True):
                if intent.holder == self.outbox.holder or self._has_ended(intent.holder):
                    self._settle_left(intent)
            yield event, self.outbox.newest()

    def _change(self, intent: AuditIntent, act: Callable[[AuditIntent], Answer]) -> Answer:
        try:
            answer = act(intent)
        except Exception:
            with contextlib.suppress(StoreError):  # it stays open until the store answers
                self.settle(intent)
            raise
        described = _described(answer) if isinstance(answer, ItemInfo) else {}
        if intent.event.action == AuditAction.SET_CONTENT_PROPERTIES:
            described = {}
        self.outbox.done(msgspec.structs.replace(intent.event, **described))
        return answer

    def settle(self, intent: AuditIntent) -> None:
        """Find out whether the change happened, and write that down. Raises :class:`StoreError`."""
        event = next((o.event for o in self.outbox.open_intents(intent.event, others=True) if _same(o, intent)), None)
        if event is None:
            return
        if event.content_id:
            happened = self._item_changed(event, intent.item)
        elif event.action == AuditAction.SET_SPACE_ACLS:
            acls_set = self.store.has_space(event.space) and self._space_acls(event.space) == event.acls
            happened = event if acls_set else None
        else:
            happened = event if self.store.has_space(event.space) != intent.had_space else None
        if happened is not None:
            self.outbox.done(happened)
        else:
            self.outbox.cancel(event.number)

    def _has_ended(self, holder: str) -> bool:
        return self.outbox.holders.state(holder) == HolderState.ENDED

    def _item_changed(self, event: AuditEvent, before: ItemInfo | None) -> AuditEvent | None:
        """*event* as it happened, described by the item as it is now; None where it did not happen."""
        try:
            now = self._look(event.space, event.content_id)
        except DamagedRecordError:
            return self._with_bytes_of(event, before)
        if not _item_changed(event, before, now):
            return None
        if now is None:
            self._require_there(event)
        elif event.action in NEW_BYTES:
            return msgspec.structs.replace(event, **_described(now))
        return event

    def _with_bytes_of(self, event: AuditEvent, before: ItemInfo | None) -> AuditEvent | None:
        """The same where the record of the item is damaged: only its bytes can tell then."""
        if event.sha256 is None or event.action not in NEW_BYTES:
            return None
        if before is not None and before.checksum() == event.sha256:
            return None
        with self.store.open(event.space, event.content_id) as file:
            read = hash_stream(file)
        return msgspec.structs.replace(event, size=read.size) if read.sha256 == event.sha256 else None

    def _settle_all_left(self, intents: Sequence[AuditIntent]) -> None:
        """:meth:`_settle_left` for each of *intents*; new items of a store that can do many at once are examined
        together."""
        bulk, together = self.bulk, dict[str, list[AuditIntent]]()
        for intent in intents:
            if bulk is not None and intent.item is None and intent.event.action == AuditAction.ADD_CONTENT:
                together.setdefault(intent.event.space, []).append(intent)
            else:
                self._settle_left(intent)
        for space, some in together.items():
            self._require_there(some[0].event)
            assert bulk is not None
            bulk.settle(space, some)

    def _settle_left(self, intent: AuditIntent) -> None:
        """Settle what was left open before. Raises :class:`StoreError`, also where the store is not there."""
        if intent.event.content_id:
            self._require_there(intent.event)
        self.settle(intent)

    def _require_there(self, event: AuditEvent) -> None:
        """Raise :class:`StoreUnavailableError` where the store lists no space at all: so does an empty mount point."""
        if not self.store.spaces():
            raise StoreUnavailableError(
                f"cannot determine whether {event.action.value} of {event.content_id!r} happened, "
                f"because {self.url} lists no spaces: {absence_question(self.url)} If a new, "
                f"empty store replaced it, run `millstream store create {arguments(self.name, event.space)}`"
            )

    def _look_before(self, space: str, content_id: str, *, required: bool = False) -> ItemInfo | None:
        """The item before a change; None where there is none, or its record is damaged, which the change replaces."""
        try:
            return self.store.info(space, content_id) if required else self._look(space, content_id)
        except DamagedRecordError:
            return None

    def _space_acls(self, space: str) -> dict[str, SpaceAccess] | None:
        """The access list of the space; None where its record is damaged, which a change replaces."""
        try:
            return dict(self.store.space_acls(space))
        except DamagedRecordError:
            return None

    def _look(self, space: str, content_id: str) -> ItemInfo | None:
        try:
            return self.store.info(space, content_id)
        except (ItemNotFoundError, SpaceNotFoundError):
            return None


def settle_ended(stores: Iterable[Store]) -> None:
    """Settle the changes that terminated processes of this machine left open at the audited ones of *stores*. If a
    store does not answer, its changes stay open, and this is logged.
    """
    for store in stores:
        if not isinstance(store, AuditedStore):
            continue
        try:
            if count := store.settle_ended():
                _log.info("store %s: %d changes settled that ended processes had left open", store.name, count)
        except (StoreError, sa.exc.OperationalError) as error:
            _log.warning("store %s: changes of ended processes stay open until the next start: %s", store.name, error)


class _Witness(io.RawIOBase):
    """Passes *source* on, and has its SHA-256 in the outbox before the end of the bytes is told to anybody.

    So where the outbox has none, the store never saw the end, and has stored nothing.
    """

    def __init__(self, source: BinaryIO, event: AuditEvent, outbox: AuditOutbox) -> None:
        super().__init__()
        self._source, self._event, self._outbox = source, event, outbox
        self._digest, self._size, self._noted = hashlib.sha256(), 0, False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._digest.update(data)
        self._size += len(data)
        if (not data or size < 0) and not self._noted:
            self._noted = True
            known = {"sha256": self._digest.hexdigest(), "size": self._size}
            self._outbox.note(msgspec.structs.replace(self._event, **known))
        return data


def _item_changed(event: AuditEvent, before: ItemInfo | None, now: ItemInfo | None) -> bool:
    """Whether the item is as *event* would have made it, and was not so before."""
    if event.action == AuditAction.DELETE_CONTENT:
        return now is None
    if now is None or now == before:
        return False
    if event.action == AuditAction.SET_CONTENT_PROPERTIES:
        return dict(now.properties) == event.properties
    if now.checksum() is not None and event.sha256 is not None:
        return now.checksum() == event.sha256
    return event.action == AuditAction.COPY_CONTENT and now.size == event.size


def _same(one: AuditIntent, other: AuditIntent) -> bool:
    return one.event.number == other.event.number


def _described(info: ItemInfo) -> dict[str, Any]:
    return {"sha256": info.checksum(), "size": info.size, "mimetype": info.mimetype}


def _known_sum(source: BinaryIO) -> str | None:
    """The SHA-256 of what *source* still gives, where it can be read twice."""
    if not (isinstance(source, io.IOBase) and source.seekable()):
        return None
    start = source.tell()
    sha256 = hash_stream(source).sha256
    source.seek(start)
    return sha256
