"""The duplication processor: finds the states of both ends, lets the table decide, and acts at the destination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from millstream.mill.audit.audit_lookup import MILL_USER, AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.bulk import copy_group, duplicate_group
from millstream.mill.duplication.change_guard import ChangeGuard, ChangeKind
from millstream.mill.duplication.differences import deletion_time, is_deleted
from millstream.mill.duplication.duplication_decision import (
    UNAUDITED,
    DuplicationAct,
    DuplicationAction,
    DuplicationRow,
    EndState,
    ObservedEnd,
    SourceRecord,
    clean_properties,
    decide_duplication,
    is_unaudited,
)
from millstream.mill.duplication.transfer import quarantine, transfer
from millstream.mill.errors import ChangePendingError, DuplicationError, NoAnswerError
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestEvent, ManifestRow
from millstream.mill.policies.policy import Pair
from millstream.mill.policies.repository import Policies
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import Duplicate
from millstream.stores.audit import AuditAction, AuditOutbox
from millstream.stores.protocol import (
    READ_REFUSALS,
    DamagedRecordError,
    ItemInfo,
    ItemNotFoundError,
    SpaceNotFoundError,
    StoreError,
    StoreInputError,
    StoreRefusedError,
)


class _LookedUpEnd(ObservedEnd, frozen=True):
    """A side, with what its provider says of the item and what it answered instead."""

    info: ItemInfo | None = None
    error: str = ""


class DuplicationProcessor:
    """Takes :class:`Duplicate` tasks to their end.

    The source is only read. Deletes, and copies in the place of other recorded bytes, are made within the budget of
    *change_guard*, where there is one; a task that it holds is done, and found again once a person approves. What was
    copied, deleted or found in place is recorded in the manifest for the destination; what the manifest says of the
    source is written by its writers. *policies* gives the policies as they are now: a task that none
    of them asks for any more does nothing. Without it every task is done. A deletion at the source that waits in
    *outbox* counts as recorded. An item of an audited source is not copied where *audit_lookup* knows it with another
    checksum: the change bypassed the audit.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        change_guard: ChangeGuard | None = None,
        *,
        policies: Callable[[], Policies] | None = None,
        outbox: AuditOutbox | None = None,
        audit_lookup: AuditLookup | None = None,
    ) -> None:
        self._providers = providers
        self._manifest = manifest
        self._change_guard = change_guard
        self._policies = policies
        self._outbox = outbox
        self._audit_lookup = audit_lookup

    def process(self, task: Duplicate, attempt: int) -> TaskResult:  # noqa: ARG002 - as all processors
        """Raises :class:`DuplicationError` with the row of the table, the item and both stores in its text.

        It is a :class:`NoAnswerError` where the task may succeed later without anyone changing anything; a
        :class:`StoreInputError` that is permanent where a store never takes this item. Raises
        :class:`ChangePendingError` while the item at the destination is being changed.
        """
        done, again = self._take_turn(task)
        if not again:
            return done
        last = done.events[-1]
        more, _ = self._take_turn(task, last)  # what changes after that has its own task, or the next loop finds it
        later = (msgspec.structs.replace(event, at=max(last.at, event.at)) for event in more.events)
        return TaskResult(f"{done.summary.split()[0]}, then {more.summary}", events=(*done.events, *later))

    def _take_turn(self, task: Duplicate, before: ManifestEvent | None = None) -> tuple[TaskResult, bool]:
        """Do *task* once; also whether the source has changed since, so that it is to be done again.

        *before* is what the first turn did. After the second one it is not asked: an item may change all the time.
        """
        source, destination = self._look(task.source, task), self._look(task.destination, task)
        if not self._is_asked(task):
            return TaskResult(f"nothing: no policy asks for {task.space!r} {_pair(task)} any more"), False
        written = None if before is None else before.sha256
        record = self._record(task, source, destination, written)
        action = decide_duplication(task.space, task.content_id, source, destination, record)
        if action.act == DuplicationAct.COPY and self._is_unaudited(task, source):
            action = UNAUDITED
        done = self._done(action, task, source, destination, written)
        is_last = before is not None or not done.events
        return done, not is_last and self._is_overtaken(action, task, source, done.events[-1])

    def copy_new(self, task: Duplicate, audited: str | None = None) -> TaskResult | None:
        """As :meth:`process`, but None where the destination has other bytes, or the source is not what was *audited*
        (a checksum in hex): such a task is to be done where manifest, change guard and audit are at hand.
        """
        source, destination = self._look(task.source, task), self._look(task.destination, task)
        action = decide_duplication(task.space, task.content_id, source, destination, SourceRecord.NONE)
        is_copy = action.act == DuplicationAct.COPY
        if is_copy and (destination.end == EndState.ITEM or is_unaudited(source.sha256, audited)):
            return None
        done = self._done(action, task, source, destination)
        now = self._look(task.source, task) if is_copy else source
        return done if now.end == EndState.UNREACHABLE or (now.end, now.sha256) == (source.end, source.sha256) else None

    def _done(
        self,
        action: DuplicationAction,
        task: Duplicate,
        source: _LookedUpEnd,
        destination: _LookedUpEnd,
        written: str | None = None,
    ) -> TaskResult:
        if action.act in (DuplicationAct.FAIL, DuplicationAct.RETRY):
            raise _failure(task, action, source.error or destination.error)
        try:
            with self._guarded(action, task, source) as hold:
                if hold is not None:
                    return TaskResult(f"{action.row} held under number {hold} until it is approved: {action.reason}")
                if action.act == DuplicationAct.COPY and (written is None or destination.sha256 != written):
                    self._keep_foreign(task, destination)
                events = self._act(action, task, source, destination)
        except StoreRefusedError as error:
            if action.act != DuplicationAct.SET_PROPERTIES:
                raise
            return TaskResult(f"D9 nothing: the destination refuses new properties in its present state: {error}")
        return TaskResult(f"{action.row} {action.act.value}: {action.reason}", events=events)

    def _is_overtaken(
        self, action: DuplicationAction, task: Duplicate, source: _LookedUpEnd, done: ManifestEvent
    ) -> bool:
        """Whether the source has changed while the copy was written or deleted, so that the copy is not of it.

        The task of that change may be done, and have found the copy as it was before.
        """
        if action.act not in (DuplicationAct.COPY, DuplicationAct.DELETE):
            return False
        now = self._look(task.source, task)
        if now.end == EndState.ITEM:
            return action.act == DuplicationAct.DELETE or now.sha256 not in (None, source.sha256)
        if action.act == DuplicationAct.DELETE or now.end == EndState.UNREACHABLE:
            return False
        try:
            return self._record(task, now, self._look(task.destination, task), done.sha256) == SourceRecord.DELETED
        except ChangePendingError:  # somebody is changing the copy
            return False

    def process_group(self, tasks: Sequence[Duplicate]) -> Sequence[TaskResult | None]:
        """Those of *tasks* that are small new copies or find nothing to do, where both stores can do many at once."""
        asked = [task for task in tasks if self._is_asked(task)]
        done = dict(zip(asked, duplicate_group(self._providers, self._manifest, asked, self._audit_sums), strict=True))
        return [done.get(task) for task in tasks]

    def copy_group(self, pair: Pair, space: str, infos: Mapping[str, ItemInfo | None]) -> Mapping[str, TaskResult]:
        """The results of those items of *infos* that could be done together, by id, for the caller that planned them.

        *infos* has the source's present metadata of items that are missing at the destination, and None of others.
        """
        if self._policies is not None and not self._is_asked(Duplicate(pair.source, pair.destination, space, "")):
            return {}
        return copy_group(self._providers, self._manifest, pair, space, infos, audit_sums=self._audit_sums)

    def _audit_sums(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, str | None]:
        return {} if self._audit_lookup is None else self._audit_lookup.sums(store, space, content_ids)

    def _is_unaudited(self, task: Duplicate, source: ObservedEnd) -> bool:
        known = self._audit_sums(task.source, task.space, [task.content_id])
        return is_unaudited(source.sha256, known.get(task.content_id))

    def _is_asked(self, task: Duplicate) -> bool:
        if self._policies is None or not task.space:
            return True
        policies = self._policies()
        if not policies.found:
            raise NoAnswerError(
                f"{policies.missing}; space {task.space!r} was not copied {_pair(task)}: mount the disk with the "
                "policies, or save a policy with `millstream mill policy save`; then redrive dead tasks with "
                "`millstream queue redrive QUEUE`"
            )
        return policies.asks(task.space, _pair(task))

    def _look(self, store: str, task: Duplicate) -> _LookedUpEnd:
        try:
            return self._look_at_item(store, task) if task.content_id else self._look_at_space(store, task.space)
        except StoreInputError as error:
            if error.permanent and task.space:  # such as an id longer than the store keeps
                raise type(error)(f"{error} ({_where(task)})") from error
            return _LookedUpEnd(EndState.UNREACHABLE, error=str(error))
        except StoreError as error:
            return _LookedUpEnd(EndState.UNREACHABLE, error=str(error))

    def _look_at_item(self, store: str, task: Duplicate) -> _LookedUpEnd:
        provider = self._providers[store]
        try:
            info = self._providers.call(lambda: provider.info(task.space, task.content_id))
        except ItemNotFoundError:
            return _LookedUpEnd(EndState.NO_ITEM)
        except SpaceNotFoundError:
            return _LookedUpEnd(EndState.NO_SPACE)
        except DamagedRecordError as error:  # a destination is written anew, with its record; a source is left alone
            return _LookedUpEnd(EndState.ITEM, error=str(error))
        return _LookedUpEnd(EndState.ITEM, info.checksum(), info.properties, info=info)

    def _look_at_space(self, store: str, space: str) -> _LookedUpEnd:
        provider = self._providers[store]
        if not space or not self._providers.call(lambda: provider.has_space(space)):
            return _LookedUpEnd(EndState.NO_SPACE)
        first = self._providers.call(lambda: provider.entries(space, limit=1))
        return _LookedUpEnd(EndState.FILLED_SPACE if first else EndState.EMPTY_SPACE)

    def _record(
        self, task: Duplicate, source: ObservedEnd, destination: _LookedUpEnd, written: str | None
    ) -> SourceRecord:
        """What the manifest says of an item that the source does not have; *written* is as for :meth:`_is_others`."""
        if source.end == EndState.ITEM or not task.content_id:
            return SourceRecord.NONE
        row, deleted_at = self._manifest.get(task.source, task.space, task.content_id), None
        if self._outbox is not None and not (row is not None and row.deleted):
            waiting = self._outbox.deletions(task.source, task.space, [task.content_id])
            deleted_at = waiting.get(task.content_id)
        if deletion_time(row, deleted_at) is not None:
            is_there = destination.end == EndState.ITEM
            is_others = is_there and self._is_others(task, row, deleted_at, destination, written)
            return SourceRecord.NONE if is_others else SourceRecord.DELETED
        return SourceRecord.NONE if row is None or row.deleted else SourceRecord.LIVE

    def _is_others(
        self,
        task: Duplicate,
        row: ManifestRow | None,
        deleted_at: int | None,
        destination: _LookedUpEnd,
        written: str | None,
    ) -> bool:
        """Whether the item at the destination may be another than the one that was deleted at the source.

        Then the deletion says nothing of it, as where stores are copied in a circle, a policy was reversed, or the
        destination had an item of this name before. An item with the checksum *written* (hex) is a copy: this worker
        has just written it.
        """
        at = deletion_time(row, deleted_at) or 0
        if written is None or destination.sha256 != written:
            copied = self._manifest.get(task.destination, task.space, task.content_id)
            if not is_deleted(row, deleted_at, copied):
                return True
            since = None if destination.info is None else destination.info.modified
            is_later = since is not None and since > at
            is_other = row is not None and row.sha256 is not None and destination.sha256 not in (None, row.sha256)
            if is_later and (is_other or copied is None or self._is_in_circle(task)):
                return True
            if is_other and copied is None:
                return True
        event = None
        if self._audit_lookup is not None:
            try:
                event = self._audit_lookup.last_change(ItemRef(task.destination, task.space, task.content_id))
            except ChangePendingError as error:  # it may have been added since
                raise ChangePendingError(f"{error} ({_where(task)})") from error
        if event is None or event.action == AuditAction.DELETE_CONTENT or event.user == MILL_USER:
            return False
        return event.at > at

    def _is_in_circle(self, task: Duplicate) -> bool:
        """Whether policies may copy the item from the destination of *task* to its source, too."""
        policies = None if self._policies is None else self._policies()
        if policies is None:
            return False
        return task.source in policies.copies(task.space) and task.destination in policies.copied_from(task.space)

    @contextlib.contextmanager
    def _guarded(self, action: DuplicationAction, task: Duplicate, source: _LookedUpEnd) -> Iterator[int | None]:
        """Count the action against the budget while it is done; the number of the hold where that is used up."""
        kind = self._loss(action, task, source)
        if self._change_guard is None or kind is None:
            yield None
            return
        pair = _pair(task)
        hold = self._change_guard.spend(pair, task.space, kind)
        try:
            yield hold
        except BaseException:
            if hold is None:
                self._change_guard.refund(pair, task.space, kind)
            raise

    def _loss(self, action: DuplicationAction, task: Duplicate, source: _LookedUpEnd) -> ChangeKind | None:
        """The item that the destination would lose by *action*."""
        if action.act == DuplicationAct.DELETE:
            return "deletes"
        if action.row != DuplicationRow.CHECKSUMS_DIFFER:
            return None
        row = self._manifest.get(task.destination, task.space, task.content_id)
        is_repair = row is not None and not row.deleted and row.sha256 == source.sha256
        return None if is_repair else "changes"  # what is not recorded may be an original

    def _act(
        self, action: DuplicationAction, task: Duplicate, source: _LookedUpEnd, destination: _LookedUpEnd
    ) -> tuple[ManifestEvent, ...]:
        if action.act == DuplicationAct.CREATE_SPACE:
            self._providers.make_space(task.destination, task.space)
        elif action.act == DuplicationAct.DELETE_SPACE:
            self._delete_space(task)
        elif action.act == DuplicationAct.DELETE:
            return (self._delete(task),)
        elif action.act == DuplicationAct.COPY and source.info is not None:
            return (self._copy(task, source.info, destination),)
        elif action.act == DuplicationAct.SET_PROPERTIES and source.info is not None:
            self._set_properties(task, source.info)
        return self._adopt(task, destination)

    def _delete_space(self, task: Duplicate) -> None:
        with contextlib.suppress(SpaceNotFoundError):
            self._providers.call(lambda: self._providers[task.destination].delete_space(task.space))

    def _delete(self, task: Duplicate) -> ManifestEvent:
        with contextlib.suppress(ItemNotFoundError):
            self._providers.call(lambda: self._providers[task.destination].delete(task.space, task.content_id))
        return ManifestEvent(task.destination, task.space, task.content_id, self._now(task), deleted=True)

    def _copy(self, task: Duplicate, source: ItemInfo, destination: _LookedUpEnd) -> ManifestEvent:
        if destination.end == EndState.NO_SPACE:
            self._providers.make_space(task.destination, task.space)
        stored = transfer(
            self._providers,
            ItemRef(task.source, task.space, task.content_id),
            ItemRef(task.destination, task.space, task.content_id),
            source.checksum() or "",
            mimetype=source.mimetype,
            properties=clean_properties(source.properties),
        )
        return self._event(task, stored)

    def _keep_foreign(self, task: Duplicate, destination: _LookedUpEnd) -> None:
        """Keep in quarantine what the copy would replace and is not what was copied there: it may be an original."""
        if destination.info is None:
            return
        row = self._manifest.get(task.destination, task.space, task.content_id)
        place = ItemRef(task.destination, task.space, task.content_id)
        with contextlib.suppress(*READ_REFUSALS):  # what the store does not give out cannot be kept
            found = destination.sha256 or self._providers.hash(place).sha256
            if row is not None and not row.deleted and row.sha256 == found:
                return
            quarantine(self._providers, place, "replaced by a new version of its source, and is not what was copied")

    def _set_properties(self, task: Duplicate, source: ItemInfo) -> None:
        properties = clean_properties(source.properties)
        store = self._providers[task.destination]
        self._providers.call(lambda: store.set_properties(task.space, task.content_id, properties))

    def _adopt(self, task: Duplicate, destination: _LookedUpEnd) -> tuple[ManifestEvent, ...]:
        """Record a copy that is in place and that the manifest does not know yet.

        Where it is recorded with other bytes, only if our record of the source has these: then it was copied by a
        process that died. What both providers say is no evidence, since both copies may have been replaced alike.
        """
        if destination.info is None or destination.sha256 is None:
            return ()
        row = self._manifest.get(task.destination, task.space, task.content_id)
        if row is not None and not row.deleted:
            source = self._manifest.get(task.source, task.space, task.content_id)
            recorded = None if source is None or source.deleted else source.sha256
            if row.sha256 == destination.sha256 or recorded != destination.sha256:
                return ()
        return (self._event(task, destination.info),)

    def _event(self, task: Duplicate, info: ItemInfo) -> ManifestEvent:
        return ManifestEvent(
            task.destination,
            task.space,
            task.content_id,
            self._now(task),
            sha256=info.checksum(),
            size=info.size,
            mimetype=info.mimetype,
        )

    def _now(self, task: Duplicate) -> int:
        """The time, or that of the copy's row, where the clock was set back since: what was done now is the latest."""
        row = self._manifest.get(task.destination, task.space, task.content_id)
        now = self._providers.clock.now()
        return now if row is None else max(now, row.modified)


def _pair(task: Duplicate) -> Pair:
    return Pair(task.source, task.destination)


def _failure(task: Duplicate, action: DuplicationAction, answer: str) -> DuplicationError:
    where = _where(task)
    kind = NoAnswerError if action.act == DuplicationAct.RETRY else DuplicationError
    return kind(f"{action.row}: {action.reason} ({where})" + (f": {answer}" if answer else ""))


def _where(task: Duplicate) -> str:
    item = f"{task.content_id!r} in " if task.content_id else ""
    return f"{item}space {task.space!r} from store {task.source!r} to store {task.destination!r}"
