"""The batch writer of operations: cuts the queue, and sees each cut through to exactly one anchor (promise P7).

prepare (write the cut down) → write the files → anchor → observe → forget. Each step may be done again, by this
instance or, after its death, by another.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import AnchoringError, ObservationBlockedError
from millstream.anchoring.ledger import Ledger, LedgerEntry, append_when_free
from millstream.anchoring.registry.operation_observer import OperationObserver, required_record
from millstream.anchoring.registry.operation_queue import OperationQueue, RemovedOperations
from millstream.anchoring.registry.protocol_versions import ProtocolVersion, ProtocolVersions
from millstream.anchoring.registry.size_estimator import EstimatedSizes, estimate, write_largest_batch
from millstream.anchoring.registry.states import OpenCut, ParsedOperation, QueuedOperation, QueueSummary
from millstream.anchoring.sidetree import (
    BatchFileError,
    BatchTooLargeError,
    NamedFile,
    Operation,
    Profile,
    ReadBatch,
    RequestError,
    WrittenBatch,
    parse_request,
    read_written,
    write_batch,
)
from millstream.anchoring.sidetree.gzip_json import UNIX, UNKNOWN
from millstream.anchoring.sidetree.operations import is_too_deep, stored_operation, time_window_fault
from millstream.core.cid import CidForm, cid_of
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import BusyError, MillstreamError

_log = logging.getLogger(__name__)


class DamagedCutError(AnchoringError):
    """A prepared batch can be read from the database no more; others are anchored."""


class CutEligibilityCheck(Protocol):
    """Says which operations have an effect (:class:`millstream.anchoring.registry.eligibility.Eligibility`)."""

    def verdicts(self, operations: Sequence[Operation]) -> Sequence[str | None]:
        """The reason why each of *operations* would have no effect now; None if it has an effect."""
        ...


class _PreparedCut(msgspec.Struct, frozen=True):
    """A *cut* that was written down, its *batch*, how readers take that, and its operations by suffix."""

    cut: OpenCut
    batch: WrittenBatch
    read: ReadBatch
    accepted: Mapping[str, ParsedOperation]


class _Examined:
    """What the files of operations that wait would have, so that only those that come later are estimated anew."""

    def __init__(self, waiting: Sequence[QueuedOperation] = ()) -> None:
        self.sizes = estimate(each.request for each in waiting)
        self._by_type = dict[str, tuple[int, int]]()
        for each in waiting:
            count, size = self._by_type.get(each.type, (0, 0))
            self._by_type[each.type] = count + 1, size + len(each.request)

    def most(self, waiting: QueueSummary) -> EstimatedSizes:
        """What the files of all that is *waiting* have at most."""
        sizes = msgspec.structs.replace(self.sizes)
        for kind, (count, size) in waiting.by_type.items():
            known_count, known_size = self._by_type.get(kind, (0, 0))
            sizes.add_unread(kind, max(0, count - known_count), max(0, size - known_size))
        return sizes


class OperationWriter:
    """Cuts the operations of *queue* into batches, writes them to *cas*, and anchors them in *ledger*. Thread-safe.

    A batch is cut when MAX_OPERATION_COUNT operations wait, when their files are estimated to be full, or when the
    oldest has waited for *timeout* seconds since it was accepted (``batch-writer-timeout``).
    """

    def __init__(
        self,
        queue: OperationQueue,
        cas: Cas,
        ledger: Ledger,
        observer: OperationObserver,
        versions: ProtocolVersions,
        *,
        judge: CutEligibilityCheck | None = None,
        timeout: float = 60.0,
        max_operations: int | None = None,
    ) -> None:
        self._queue = queue
        self._store = queue.store
        self._cas = cas
        self._ledger = ledger
        self._observer = observer
        self._versions = versions
        self._judge = judge
        self._timeout = int(timeout * MICROSECONDS)
        self._most = max_operations
        self._cutting = threading.Lock()
        self._examined = _Examined()

    def cut(self, *, force: bool = False) -> Sequence[LedgerEntry]:
        """Anchor every batch that is due, and with *force* whatever may be cut; returns the new ledger entries.

        An operation that can never be anchored is rejected with its reason, one that fails otherwise is retried
        later, and the others continue. Whatever fails in between is finished by the next call. Raises
        :class:`DamagedCutError` at the end if a prepared batch cannot be made again.
        """
        with self._cutting:
            entries, damaged = self._finish_open()
            while waiting := self._due(force):
                self._examined = _Examined()
                with self._queue.remove(waiting) as removed:
                    prepared = self._prepare(removed)
                if prepared is not None:
                    entries.append(self._finish(prepared.cut, prepared.batch, prepared))
            if damaged is not None:
                raise damaged
            return entries

    def recover(self) -> Sequence[LedgerEntry]:
        """Finish the cuts that are this instance's, its own or inherited; returns their ledger entries."""
        with self._cutting:
            entries, damaged = self._finish_open()
            if damaged is not None:
                raise damaged
            return entries

    def _finish_open(self) -> tuple[list[LedgerEntry], DamagedCutError | None]:
        """Finish all open cuts but those that cannot be made again; returns the error of one of these, too."""
        cuts = self._store.open_cuts(self._queue.instance)
        if cuts:
            self._observer.check_ledger()
        entries, damaged = list[LedgerEntry](), None
        for cut in cuts:
            try:
                batch = self._rewritten(cut)
            except DamagedCutError as error:
                damaged = error
            else:
                entries.append(self._finish(cut, batch))
        return entries, damaged

    def _due(self, force: bool) -> Sequence[QueuedOperation]:
        """The operations of the next batch, all accepted under one version; none where it is not due."""
        profile = self._version().profile
        most = min(self._most or profile.max_operations, profile.max_operations)
        if not force and not self._may_be_due(most, profile):
            return []
        waiting = self._queue.peek(most)
        if not waiting:
            return []
        leading = list(itertools.takewhile(lambda each: each.version == waiting[0].version, waiting))
        now = self._store.database.read(lambda _connection, now: now)
        aged = now - leading[0].accepted_at >= self._timeout
        return (
            leading if force or aged or len(waiting) == most or len(leading) < len(waiting) else self._if_full(leading)
        )

    def _may_be_due(self, most: int, profile: Profile) -> bool:
        """Whether a look at the operations that wait is worth it, by their numbers: this is asked every second."""
        if not self._is_enough(self._queue.bound(), most, profile):
            return False
        waiting = self._queue.summary()
        if not waiting.count:
            self._examined = _Examined()
        enough = self._is_enough(waiting, most, profile)
        if not enough:
            self._queue.count_anew()
        return enough

    def _is_enough(self, waiting: QueueSummary, most: int, profile: Profile) -> bool:
        """Whether *waiting* may be a batch that is due."""
        if not waiting.count:
            return False
        now = self._store.database.read(lambda _connection, now: now)
        aged = now - waiting.oldest >= self._timeout
        full = waiting.count >= most or len(waiting.versions) > 1
        return aged or full or self._examined.most(waiting).left(profile) < 0

    def _if_full(self, waiting: Sequence[QueuedOperation]) -> Sequence[QueuedOperation]:
        """*waiting* where the files they give are estimated to be full."""
        self._examined = _Examined(waiting)
        return waiting if self._examined.sizes.left(self._version().profile) < 0 else []

    def _version(self) -> ProtocolVersion:
        return self._versions.at(self._store.database.clock.now())

    def _prepare(self, removed: RemovedOperations) -> _PreparedCut | None:
        """The cut of what was *removed*; None where nothing is left to cut."""
        version = self._version()
        now = self._store.database.read(lambda _connection, now: now)
        parsed, rejected, failed = _parse(removed.operations, version, now)
        parsed = self._with_effect(parsed, rejected)
        read: ReadBatch | None = None
        while parsed and read is None:
            try:
                batch = write_largest_batch(parsed, version.profile)
                read = read_written(batch, version.profile)
            except BatchTooLargeError as error:
                rejected[parsed.pop(0).queued.seq] = str(error)
            except (BatchFileError, RequestError):
                parsed = _without_culprits(parsed, version.profile, rejected)
        self._settle(removed, rejected, failed)
        by_suffix = {each.operation.suffix: each for each in parsed}
        cut = self._write_down(batch, by_suffix, version) if read else None
        # What was stored under another version may have been written in another form.
        accepted = {suffix: each for suffix, each in by_suffix.items() if each.queued.version == version.name}
        return _PreparedCut(cut, batch, read, accepted) if cut and read else None

    def _with_effect(self, parsed: list[ParsedOperation], rejected: dict[int, str]) -> list[ParsedOperation]:
        """Those of *parsed* that have an effect after all of the ledger; the reasons of the others go to *rejected*."""
        if parsed:
            self._observer.observe()  # another registry may have anchored what they follow, or the same
        verdicts = self._verdicts(parsed)
        rejected |= {each.queued.seq: f"no effect: {text}" for each, text in zip(parsed, verdicts, strict=True) if text}
        return [each for each, text in zip(parsed, verdicts, strict=True) if not text]

    def _verdicts(self, parsed: Sequence[ParsedOperation]) -> Sequence[str | None]:
        if self._judge is None:
            return [None] * len(parsed)
        return self._judge.verdicts([each.operation for each in parsed])

    def _write_down(
        self, batch: WrittenBatch, by_suffix: Mapping[str, ParsedOperation], version: ProtocolVersion
    ) -> OpenCut | None:
        head = self._ledger.head()
        after = head.number if head else 0
        cut = OpenCut(0, self._queue.instance, batch.anchor, version.name, after)
        queued = [by_suffix[operation.suffix].queued for operation in batch.operations]
        return self._store.prepare(cut, queued, [(file.uri, file.data) for file in batch.files])

    def _settle(self, removed: RemovedOperations, rejected: dict[int, str], failed: dict[int, str]) -> None:
        if rejected:
            self._store.reject(self._queue.instance, rejected)
        if failed:
            poisoned = [operation for operation in removed.operations if operation.seq in failed]
            RemovedOperations(self._queue, poisoned).nack(failed)

    def _finish(self, cut: OpenCut, batch: WrittenBatch, prepared: _PreparedCut | None = None) -> LedgerEntry:
        """Take *cut* of *batch* from where it stands to the end; *prepared* is what is known of a new one."""
        # Again where it is anchored: a file may be lost since.
        self._cas.put_many((file.data for file in batch.files), batch.cid)
        clock = self._store.database.clock
        entry = append_when_free(self._ledger, cut.anchor_string, clock, after=cut.ledger_after)
        if cut.number is None:
            self._store.anchored(cut, entry.number)
        try:
            if prepared is None:
                self._observer.observe(last=entry.number)
            else:
                self._observer.observe(last=entry.number, known=prepared.read, accepted=prepared.accepted)
            self._read_again(entry)
        except Exception as error:  # it is read later
            if not isinstance(error, BusyError):
                with contextlib.suppress(MillstreamError):
                    self._store.show_anchored(cut, entry.number)
            raise
        seen = required_record(self._observer.history.anchor(entry.number), entry)
        self._store.close_cut(cut, entry.number, seen.fault)
        return entry

    def _read_again(self, entry: LedgerEntry) -> None:
        """Where the files of a cut were lost before it was observed: they were written again just now."""
        history = self._observer.history
        if not history.is_postponed(entry.number):
            return
        self._observer.read_postponed(due=False)
        if history.is_postponed(entry.number):
            raise ObservationBlockedError(
                f"cannot read anchor {entry.number}: files of this anchor are missing from content-addressed storage, "
                "or the storage does not answer: check the storage, and restore missing files from a copy"
            )

    def _rewritten(self, cut: OpenCut) -> WrittenBatch:
        """The batch of *cut*: its files as they were stored, or made again from its operations."""
        files = self._store.files_of(cut)
        form = _form_of(files)
        if form is not None and cut.anchor_string.partition(".")[2] == list(files)[-1]:
            named = [NamedFile("", uri, data) for uri, data in files.items()]
            return WrittenBatch(cut.anchor_string, named, (), form)
        profile = self._versions.named(cut.version).profile
        operations = [_revived(each) for each in self._store.operations_of(cut)]
        for form in sorted(CidForm, key=lambda form: form != profile.cid):  # the setting may have changed since
            for system in (UNIX, UNKNOWN):  # a cut of an earlier version has that of its Python
                batch = write_batch(operations, msgspec.structs.replace(profile, cid=form), system=system)
                if batch.anchor == cut.anchor_string:
                    return batch
        raise DamagedCutError(
            f"the operations of cut {cut.cut} do not match its prepared files: the registry's database is damaged, or "
            "another program changed it; restore the database from a backup"
        )


def _form_of(files: Mapping[str, bytes]) -> CidForm | None:
    """The form of the CIDs of *files*; None if there are none, or one was changed."""
    forms = (form for form in CidForm if all(cid_of(data, form) == uri for uri, data in files.items()))
    return next(forms, None) if files else None


def _without_culprits(
    parsed: Sequence[ParsedOperation], profile: Profile, rejected: dict[int, str]
) -> list[ParsedOperation]:
    """Those of *parsed* that readers take by themselves; the others go to *rejected*."""
    good = list[ParsedOperation]()
    for each in parsed:
        try:
            if is_too_deep(each.operation.delta or {}):  # an earlier version accepted it
                raise BatchFileError("its delta is nested too deeply")
            read_written(write_batch([each.operation], profile), profile)
            good.append(each)
        except (BatchFileError, BatchTooLargeError, RequestError) as fault:
            rejected[each.queued.seq] = f"readers would reject this operation: {fault}"
    if len(good) == len(parsed):
        raise AnchoringError(
            f"internal error: readers accept each of {len(parsed):,} operations alone, but not all of them in one "
            "batch; please report this with the log of the process"
        )
    return good


def _revived(queued: QueuedOperation) -> Operation:
    return stored_operation(queued.request, queued.suffix)


def _parse(
    queued: Sequence[QueuedOperation], version: ProtocolVersion, now: int
) -> tuple[list[ParsedOperation], dict[int, str], dict[int, str]]:
    """The operations that are valid *now*, and by place why others never are, or why they could not be read.

    What was accepted under *version* is not checked again; the rules may have changed for all others.
    """
    parsed, rejected, failed = list[ParsedOperation](), dict[int, str](), dict[int, str]()
    for each in queued:
        try:
            known = each.version == version.name
            operation = _revived(each) if known else parse_request(each.request, version.profile)
            late = time_window_fault(operation, version.profile, now)
            if late is not None:
                rejected[each.seq] = f"anchor_window: {late}"
            else:
                parsed.append(ParsedOperation(each, operation))
        except RequestError as error:
            rejected[each.seq] = f"{error.code}: {error}"
        except Exception as error:  # one operation must never stop the others
            _log.exception("operation %s could not be read", each.id)
            failed[each.seq] = f"internal error ({type(error).__name__}: {error}); please report this"
    return parsed, rejected, failed
