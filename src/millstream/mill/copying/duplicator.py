"""The duplication processor: finds the states of both ends, lets the table decide, and acts at the destination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from millstream.mill.copying.brake import Brake, Kind
from millstream.mill.copying.duplication import Act, Action, End, Record, Side, clean_properties, decide
from millstream.mill.copying.groups import duplicate_group
from millstream.mill.copying.transfer import transfer
from millstream.mill.errors import DuplicationError, NoAnswerError
from millstream.mill.manifest import Event, Manifest
from millstream.mill.place import Place
from millstream.mill.policies.policy import Pair
from millstream.mill.policies.repository import Policies
from millstream.mill.providers import Providers
from millstream.mill.working.processor import Result
from millstream.mill.working.tasks import Duplicate
from millstream.stores.protocol import (
    ItemInfo,
    ItemNotFoundError,
    RefusedError,
    SpaceNotFoundError,
    StoreError,
)


class _Ends(Side, frozen=True):
    """A side, with what its provider says of the item and what it answered instead."""

    info: ItemInfo | None = None
    error: str = ""


class DuplicationProcessor:
    """Takes :class:`Duplicate` tasks to their end.

    The source is only read. Deletes, and copies in the place of other recorded bytes, are made within the budget of
    *brake*, where there is one; a task that it holds is done, and found again once a person approves. What was copied,
    deleted or found in place is recorded in the manifest for the destination; what the manifest says of the source is
    written by whoever writes to the source. *policies* gives the policies as they are now: a task that none of them
    asks for any more does nothing. Without it every task is done.
    """

    def __init__(
        self,
        providers: Providers,
        manifest: Manifest,
        brake: Brake | None = None,
        *,
        policies: Callable[[], Policies] | None = None,
    ) -> None:
        self._providers = providers
        self._manifest = manifest
        self._brake = brake
        self._policies = policies

    def process(self, task: Duplicate, attempt: int) -> Result:
        """Raises :class:`DuplicationError` with the row of the table, the item and both stores in its text.

        It is a :class:`NoAnswerError` where the task may succeed later without anyone changing anything.
        """
        source, destination = self._look(task.source, task), self._look(task.destination, task)
        if not self._is_asked(task):
            return Result(f"nothing: no policy asks for {task.space!r} {_pair(task)} any more")
        action = decide(task.space, task.content_id, source, destination, self._record(task, source))
        if action.act in (Act.FAIL, Act.RETRY):
            raise _failure(task, action, source.error or destination.error)
        try:
            with self._braked(action, task, source) as hold:
                if hold is not None:
                    return Result(f"{action.row} held under number {hold} until it is approved: {action.reason}")
                events = self._act(action, task, source, destination)
            if action.act == Act.DELETE and self._look(task.source, task).end == End.ITEM:  # it was added meanwhile
                again = self.process(task, attempt)
                return Result(f"{action.row}, then {again.summary}", events=(*events, *again.events))
        except RefusedError as error:
            if action.act != Act.SET_PROPERTIES:
                raise
            return Result(f"D9 nothing: the destination refuses new properties in its present state: {error}")
        return Result(f"{action.row} {action.act.value}: {action.reason}", events=events)

    def process_group(self, tasks: Sequence[Duplicate]) -> Sequence[Result | None]:
        """Those of *tasks* that are small new copies or find nothing to do, where both stores can do many at once."""
        asked = [task for task in tasks if self._is_asked(task)]
        done = dict(zip(asked, duplicate_group(self._providers, self._manifest, asked), strict=True))
        return [done.get(task) for task in tasks]

    def _is_asked(self, task: Duplicate) -> bool:
        if self._policies is None or not task.space:
            return True
        policies = self._policies()
        if not policies.found:
            raise NoAnswerError(f"{policies.missing} ({task.space!r} {_pair(task)} waits for them)")
        return policies.asks(task.space, _pair(task))

    def _look(self, store: str, task: Duplicate) -> _Ends:
        try:
            return self._look_at_item(store, task) if task.content_id else self._look_at_space(store, task.space)
        except StoreError as error:
            return _Ends(End.UNREACHABLE, error=str(error))

    def _look_at_item(self, store: str, task: Duplicate) -> _Ends:
        provider = self._providers[store]
        try:
            info = self._providers.call(lambda: provider.info(task.space, task.content_id))
        except ItemNotFoundError:
            return _Ends(End.NO_ITEM)
        except SpaceNotFoundError:
            return _Ends(End.NO_SPACE)
        return _Ends(End.ITEM, info.checksum(), info.properties, info=info)

    def _look_at_space(self, store: str, space: str) -> _Ends:
        provider = self._providers[store]
        if not space or not self._providers.call(lambda: provider.has_space(space)):
            return _Ends(End.NO_SPACE)
        first = self._providers.call(lambda: provider.entries(space, limit=1))
        return _Ends(End.FILLED_SPACE if first else End.EMPTY_SPACE)

    def _record(self, task: Duplicate, source: Side) -> Record:
        if source.end == End.ITEM or not task.content_id:
            return Record.NONE
        row = self._manifest.get(task.source, task.space, task.content_id)
        if row is None:
            return Record.NONE
        return Record.DELETED if row.deleted else Record.LIVE

    @contextlib.contextmanager
    def _braked(self, action: Action, task: Duplicate, source: _Ends) -> Iterator[int | None]:
        """Count the action against the budget while it is done; the number of the hold where that is used up."""
        kind = self._loss(action, task, source)
        if self._brake is None or kind is None:
            yield None
            return
        pair = _pair(task)
        hold = self._brake.spend(pair, task.space, kind)
        try:
            yield hold
        except BaseException:
            if hold is None:
                self._brake.refund(pair, task.space, kind)
            raise

    def _loss(self, action: Action, task: Duplicate, source: _Ends) -> Kind | None:
        """What the destination would lose by *action*."""
        if action.act == Act.DELETE:
            return "deletes"
        if action.row != "D11":
            return None
        row = self._manifest.get(task.destination, task.space, task.content_id)
        recorded = row is not None and not row.deleted and row.sha256 not in (None, source.sha256)
        return "changes" if recorded else None

    def _act(self, action: Action, task: Duplicate, source: _Ends, destination: _Ends) -> tuple[Event, ...]:
        if action.act == Act.CREATE_SPACE:
            self._providers.make_space(task.destination, task.space)
        elif action.act == Act.DELETE_SPACE:
            self._delete_space(task)
        elif action.act == Act.DELETE:
            return (self._delete(task),)
        elif action.act == Act.COPY and source.info is not None:
            return (self._copy(task, source.info, destination),)
        elif action.act == Act.SET_PROPERTIES and source.info is not None:
            self._set_properties(task, source.info)
        return self._adopt(task, destination)

    def _delete_space(self, task: Duplicate) -> None:
        with contextlib.suppress(SpaceNotFoundError):
            self._providers.call(lambda: self._providers[task.destination].delete_space(task.space))

    def _delete(self, task: Duplicate) -> Event:
        with contextlib.suppress(ItemNotFoundError):
            self._providers.call(lambda: self._providers[task.destination].delete(task.space, task.content_id))
        return Event(task.destination, task.space, task.content_id, self._now(task), deleted=True)

    def _copy(self, task: Duplicate, source: ItemInfo, destination: _Ends) -> Event:
        if destination.end == End.NO_SPACE:
            self._providers.make_space(task.destination, task.space)
        stored = transfer(
            self._providers,
            Place(task.source, task.space, task.content_id),
            Place(task.destination, task.space, task.content_id),
            source.checksum() or "",
            mimetype=source.mimetype,
            properties=clean_properties(source.properties),
        )
        return self._event(task, stored)

    def _set_properties(self, task: Duplicate, source: ItemInfo) -> None:
        properties = clean_properties(source.properties)
        store = self._providers[task.destination]
        self._providers.call(lambda: store.set_properties(task.space, task.content_id, properties))

    def _adopt(self, task: Duplicate, destination: _Ends) -> tuple[Event, ...]:
        """Record a copy that is in place and that the manifest does not know yet."""
        if destination.info is None or destination.sha256 is None:
            return ()
        row = self._manifest.get(task.destination, task.space, task.content_id)
        if row is not None and not row.deleted and row.sha256 == destination.sha256:
            return ()
        return (self._event(task, destination.info),)

    def _event(self, task: Duplicate, info: ItemInfo) -> Event:
        return Event(
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


def _failure(task: Duplicate, action: Action, answer: str) -> DuplicationError:
    where = f"{task.content_id!r} in space {task.space!r} from store {task.source!r} to store {task.destination!r}"
    kind = NoAnswerError if action.act == Act.RETRY else DuplicationError
    return kind(f"{action.row}: {action.reason} ({where})" + (f": {answer}" if answer else ""))
