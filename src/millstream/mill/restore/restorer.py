"""Restoring items, and reading a sample of them as a test that a restore would succeed."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import heapq
import io
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, cast

import msgspec

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.transfer import HashingReader
from millstream.mill.errors import MillError
from millstream.mill.item_ref import ItemRef
from millstream.mill.merge_join import groups, one_behind
from millstream.mill.restore.listing import RestorableItem
from millstream.mill.restore.targets import RestoreTarget, TargetState
from millstream.stores.folder import with_recorded_kind
from millstream.stores.hashing import chunks, read_up_to
from millstream.stores.os_errors import translated
from millstream.stores.protocol import (
    DEFAULT_MIMETYPE,
    AccessDeniedError,
    AlreadyExistsError,
    ChecksumMismatchError,
    DamagedRecordError,
    ItemInfo,
    StoreError,
)

SMALL = 1 << 20
"""Items of this many bytes are read and verified before anything of them is written."""

_GROUP = 64


class RestoreOutcome(enum.StrEnum):
    """The outcome of one item."""

    RESTORED = "restored"
    VERIFIED = "verified"  # read in a test, and good
    PRESENT = "present"  # the target had it already
    DIFFERENT = "different"  # the target has something else, which was left as it is
    FAILED = "failed"


class BadCopy(msgspec.Struct, frozen=True):
    """A copy that could not be used, and why."""

    store: str
    reason: str


class RestoredItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result for one item: its bytes came from ``store``; ``reason`` is why it was not restored, or what of it
    was not.

    ``bad`` are the copies that were tried before.
    """

    content_id: str
    outcome: RestoreOutcome
    size: int = 0
    store: str = ""
    reason: str = ""
    bad: tuple[BadCopy, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the item is at the target, or was verified."""
        return self.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.VERIFIED, RestoreOutcome.PRESENT)


class TargetError(MillError):
    """Nothing can be written to the target of a restore."""


class VerifyingReader(HashingReader):
    """Reads from *source*; its end raises :class:`ChecksumMismatchError` if the bytes do not hash to *sha256*.

    ``has_failed`` tells whether reading failed, whichever code was reading.
    """

    def __init__(self, source: BinaryIO, sha256: str, place: ItemRef) -> None:
        super().__init__(source)
        self._expected, self._place = sha256, place
        self._ahead = io.BytesIO()
        self.has_failed = False

    def read_ahead(self, size: int) -> None:
        """Read *size* bytes, which the next reads return; if there are no more, they are verified here."""
        self._ahead = io.BytesIO(read_up_to(cast(BinaryIO, self), size + 1))

    def read(self, size: int = -1) -> bytes:
        ahead = self._ahead.read(size)
        if ahead and size >= 0:
            return ahead
        try:
            with translated(f"reading {self._place}"):
                data = super().read(size)
        except Exception:
            self.has_failed = True
            raise
        if (size < 0 or (size > 0 and not data)) and self.sha256 != self._expected:
            self.has_failed = True
            raise ChecksumMismatchError(
                f"{self._place} is corrupt: its content has SHA-256 {self.sha256}, not {self._expected}"
            )
        return ahead + data


class Restorer:
    """Writes items to *target*, or only reads them where there is none, *threads* of them at the same time.

    An item is taken from the first of its copies whose bytes have the recorded checksum; one beside which the record is
    damaged is the last choice, and gives the bytes alone. What stands at the target under its id and differs is
    replaced only with *overwrite*.
    """

    def __init__(
        self, providers: ConfiguredStores, target: RestoreTarget | None, *, overwrite: bool = False, threads: int = 8
    ) -> None:
        self._providers, self._target, self._overwrite, self._threads = providers, target, overwrite, threads

    def run(self, items: Iterable[RestorableItem]) -> Iterator[RestoredItem]:
        """The result of each of *items*, in order."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="mill-restore") as pool:
            submitted = ([pool.submit(self._restore, item) for item in some] for some in groups(items, _GROUP))
            try:
                for futures in one_behind(submitted):
                    for future in futures:
                        yield future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _restore(self, item: RestorableItem) -> RestoredItem:
        bad: list[BadCopy] = []
        copies: deque[tuple[ItemRef, ItemInfo | None]] = deque((place, None) for place in item.copies)
        while copies:
            place, described = copies.popleft()
            try:
                if described is None:
                    return self._take(item, place, self._find(item, place), bad)
                return _without_record(self._take(item, place, described, bad), place)
            except DamagedRecordError as error:
                bad.append(BadCopy(place.store, str(error)))
                if described is None:  # its bytes may be good: it is the last choice
                    info = ItemInfo(item.content_id, item.size, (), item.mimetype or DEFAULT_MIMETYPE, {})
                    copies.append((place, _as_recorded(item, info)))
            except AlreadyExistsError:
                reason = _FOLDER_THERE if self._overwrite else _FILE_THERE
                return _result(item, RestoreOutcome.DIFFERENT, bad, reason=reason)
            except _RefusedByTargetError as error:
                return _result(item, RestoreOutcome.FAILED, bad, reason=str(error))
            except StoreError as error:
                bad.append(BadCopy(place.store, str(error)))
        reason = item.reason or ("no copy of the item can be used" if bad else "no store has the item any more")
        return _result(item, RestoreOutcome.FAILED, bad, reason=reason)

    def _find(self, item: RestorableItem, place: ItemRef) -> ItemInfo:
        info = self._providers.find(place)
        if info is None:
            raise StoreError(f"{place} no longer exists")
        # the copy of another item with the same bytes may be what is left of this one
        return _as_recorded(item, msgspec.structs.replace(info, content_id=item.content_id))

    def _take(self, item: RestorableItem, place: ItemRef, info: ItemInfo, bad: Sequence[BadCopy]) -> RestoredItem:
        outcome, state = RestoreOutcome.VERIFIED, TargetState.ABSENT
        if self._target is not None:
            with _errors_of_target():
                state = self._target.state(info, item.sha256)
            if state == TargetState.SAME:
                return _result(item, RestoreOutcome.PRESENT, bad, info=info)
            if state == TargetState.DIFFERENT and not self._overwrite:
                raise AlreadyExistsError
            if state == TargetState.UNREADABLE and not self._overwrite:
                raise _RefusedByTargetError(_UNREADABLE_THERE)
            outcome = RestoreOutcome.RESTORED
        self._providers.call(lambda: self._copy(item, place, info, is_unreadable=state == TargetState.UNREADABLE))
        return _result(item, outcome, bad, info=info, store=place.store)

    def _copy(self, item: RestorableItem, place: ItemRef, info: ItemInfo, *, is_unreadable: bool) -> None:
        """Read the bytes at *place* to their end, verify them, and write them to the target, in place of what
        *is_unreadable*."""
        with self._providers[place.store].open(place.space, place.content_id) as file:
            reader = VerifyingReader(file, item.sha256, place)
            source = cast(BinaryIO, reader)
            reader.read_ahead(SMALL)  # whatever size the provider says that it has
            if self._target is None:
                for _ in chunks(source):
                    pass
                return
            with _errors_of_target(reader, is_unreadable=is_unreadable):
                self._target.write(info, source, item.sha256, replace=self._overwrite)


_FILE_THERE = "a different file exists there (--overwrite replaces it)"
_UNREADABLE_THERE = "what exists there under its id cannot be read, and may be the same (--overwrite replaces it)"
_FOLDER_THERE = "a folder stands there, which is never replaced: move it away, or restore into another folder"


class _RefusedByTargetError(StoreError):
    """The target never takes this item."""


@contextlib.contextmanager
def _errors_of_target(reader: VerifyingReader | None = None, *, is_unreadable: bool = False) -> Iterator[None]:
    """Tell errors of the target from those of the copy that *reader* reads.

    Raises :class:`TargetError` for one that the other items would meet as well: not for missing rights to an item that
    *is_unreadable* there.
    """
    try:
        yield
    except AlreadyExistsError:
        raise
    except StoreError as error:
        if reader is not None and (reader.has_failed or isinstance(error, ChecksumMismatchError)):
            raise
        if error.permanent or (is_unreadable and isinstance(error, AccessDeniedError)):
            raise _RefusedByTargetError(str(error)) from error
        raise TargetError(
            f"cannot write to the target: {error}. The restore stopped; the same command resumes the restore"
        ) from error


def sample(items: Iterable[RestorableItem], count: int, seed: str) -> list[RestorableItem]:
    """*count* of *items*, the same ones for the same *seed*, in the order of their ids."""

    def draw(item: RestorableItem) -> bytes:
        return hashlib.sha256(f"{seed}\0{item.content_id}".encode()).digest()

    return sorted(heapq.nsmallest(count, items, key=draw), key=lambda item: item.content_id)


def _as_recorded(item: RestorableItem, info: ItemInfo) -> ItemInfo:
    return info if item.mimetype is None else with_recorded_kind(info, item.mimetype)


def _without_record(done: RestoredItem, place: ItemRef) -> RestoredItem:
    """*done* from the bytes at *place*, beside which the record is damaged."""
    if not done.is_good:
        return done
    reason = f"its record in store {place.store} is damaged, so that it has no properties"
    bad = tuple(copy for copy in done.bad if copy.store != place.store)
    return msgspec.structs.replace(done, reason=reason, bad=bad)


def _result(
    item: RestorableItem,
    outcome: RestoreOutcome,
    bad: Iterable[BadCopy],
    *,
    info: ItemInfo | None = None,
    store: str = "",
    reason: str = "",
) -> RestoredItem:
    size = item.size if info is None else info.size
    return RestoredItem(
        content_id=item.content_id, outcome=outcome, size=size, store=store, reason=reason, bad=tuple(bad)
    )
