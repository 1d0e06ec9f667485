"""The batch writer: accepts encoded batches, and sees each through to exactly one anchor (promise P7).

prepare (write the cut down) → write the files → anchor → observe → forget. Each step may be done again, so a writer
that died at any point is replaced by one that calls :meth:`BatchWriter.recover`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from millstream.anchoring.batch_file_builder import build_files, build_manifest, build_manifest_over_files
from millstream.anchoring.batch_files import BatchFilePart, checked_batch
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.cas import Cas, not_found
from millstream.anchoring.content import AnchoredBatches
from millstream.anchoring.cut_limits import CutLimits
from millstream.anchoring.cut_manifest import (
    CutManifest,
    anchor_string,
    decode_manifest,
    encode_manifest,
)
from millstream.anchoring.duplicate_check import BatchMembers
from millstream.anchoring.errors import (
    NODE_LOGS,
    RESTORE_DATABASE,
    AnchoringError,
    JournalBusyError,
    LedgerReplacedError,
)
from millstream.anchoring.index import AnchorIndex, require_observed
from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.ledger import Ledger, LedgerEntry, append_when_free
from millstream.anchoring.observer import Observer, ObserverProgress
from millstream.anchoring.packing import PackedCut
from millstream.anchoring.states import (
    AddResult,
    BatchState,
    BatchStream,
    CutCandidate,
    CutPlan,
    FeedPosition,
    JournalCut,
)
from millstream.core import tracing
from millstream.core.cid import cid_of
from millstream.core.clock import Clock, SystemClock

_ANY = (1 << 63) - 1
"""A place in the order of adding that is after all others."""


class RejectedRecord(Protocol):
    """A message that is in no batch (:class:`millstream.batching.RejectedRecord`)."""

    @property
    def rejected(self) -> int: ...

    @property
    def reason(self) -> str: ...


class BatchWriter:
    """Accepts batches into *journal* and anchors them in *ledger* through *cas*. Thread-safe.

    One writer cuts at a time: another process on the same journal gets a ``BusyError``, never a second anchor.
    """

    def __init__(
        self,
        journal: BatchJournal,
        cas: Cas,
        ledger: Ledger,
        observer: Observer,
        *,
        limits: CutLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.journal = journal
        self._cas = cas
        self._ledger = ledger
        self._observer = observer
        self._limits = limits or CutLimits()
        self._clock = clock or SystemClock()
        self._cutting = threading.Lock()

    def add(
        self,
        log: str,
        batches: Iterable[EncodedBatch],
        rejects: Iterable[RejectedRecord] = (),
        *,
        config: Mapping[str, Any],
        sealed: bool = False,
        fed: FeedPosition | None = None,
    ) -> AddResult:
        """Accept *batches* and *rejects* of *log* durably, all or none; what is known already is not added again.

        *config* is the batching configuration as JSON members; it goes into the manifest. Rejects travel with the next
        batch of the same log and configuration. One call is one transaction: hand over thousands, not millions.
        *sealed* batches come from where they were encoded under checksums, and are not compared with their headers
        here; the observer compares them, as all, when they are read back. *fed* is as in :meth:`BatchJournal.add`.
        Raises :class:`BatchFormatError` where a batch does not hold what its header says.
        """
        checked = list(batches if sealed else map(checked_batch, batches))
        reasons = [(reject.rejected, reject.reason) for reject in rejects]
        return self.journal.add(log, config, checked, reasons, fed=fed, at=self._clock.now())

    def cut(self, *, force: bool = False) -> Sequence[LedgerEntry]:
        """Anchor every full cut, and with *force* whatever waits; returns the new ledger entries.

        A batch that no reader would take (too large, or with a message that is anchored already) is rejected with
        that reason, and the others continue. Whatever fails in between is finished by the next call. Raises
        :class:`ObservationBlockedError` where an anchored file cannot be read back, :class:`CasError`,
        :class:`LedgerReplacedError` where the ledger lost entries that were observed, and a ``BusyError`` while another
        process writes to the journal, or for some time to the ledger.
        """
        with self._cutting:
            entries = self._finish_open()
            self._observer.observe()  # so that screening knows every anchor
            for stream in self.journal.streams():
                while plan := self._plan(stream, force):
                    entries.append(self._finish(self.journal.prepare(plan)))
            return entries

    def take(self, log: str, packed: PackedCut, *, config: Mapping[str, Any]) -> LedgerEntry | None:
        """Anchor *packed*, whose files lie in this writer's storage and were read back; returns its ledger entry.

        Rejects of the same log and *config* that wait go with it. None, and nothing is changed, where its batches have
        to go by :meth:`add`: others wait there, one of these is known, or no reader would take it. Raises what
        :meth:`cut` raises.
        """
        with self._cutting:
            self._finish_open()
            self._observer.observe()
            stream = self.journal.stream(log, config)
            batches = packed.batches
            if self.journal.candidates(stream, 1) or self.index.check_duplicates(log, batches.members):
                return None
            rejects, limit = self._waiting_rejects(stream, _ANY), self._limits.file_bytes
            manifest = build_manifest_over_files(stream, packed.files, batches.leaf_hashes, rejects, limit)
            plan = self._plan_under(manifest, stream, _ANY, rejects)
            cut = self.journal.prepare_packed(plan, packed)
            return self._finish(cut, packed.content) if cut else None

    @property
    def limits(self) -> CutLimits:
        """When a cut is full."""
        return self._limits

    @property
    def index(self) -> AnchorIndex:
        """What was read back from the ledger."""
        return self._observer.index

    def anchored(self, log: str, batches: Mapping[str, Sequence[int]]) -> Mapping[str, bytes]:
        """:meth:`AnchorIndex.anchored`, where the journal may not know what is anchored: its database was lost or
        restored from a backup, or :meth:`rebuild` made it forget."""
        return self.index.anchored(log, batches) if self.is_journal_behind() else {}

    def is_journal_behind(self) -> bool:
        """Whether the journal knows fewer anchors than the index."""
        return self.journal.cut_count() < self.index.anchor_count()

    def recover(self) -> Sequence[LedgerEntry]:
        """Finish what a dead writer left; returns the entries of the cuts that were finished. To be called at start."""
        with self._cutting:
            return self._finish_open()

    def rebuild(self) -> ObserverProgress:
        """Read all of a ledger that lost entries that were observed, and anchor what they held again later.

        The index is built anew. The journal keeps the batches that wait, and forgets all others, so that logs of
        batches are read again from their beginnings. Nothing is changed where the ledger continues what was observed.
        Raises :class:`LedgerError` where its chain is broken.
        """
        with self._cutting:
            try:
                self._observer.check_ledger()
            except LedgerReplacedError:
                self._ledger.verify()
                self.journal.forget_anchored()  # first: until the index is cleared, nothing is anchored
                self.index.clear()
            return self._observer.observe()

    def _finish_open(self) -> list[LedgerEntry]:
        cuts = self.journal.open_cuts()
        if cuts:
            self._observer.check_ledger()
        return [self._finish(cut) for cut in cuts]

    def _plan(self, stream: BatchStream, force: bool) -> CutPlan | None:
        """The next cut of *stream*, None where nothing is to be cut."""
        while True:
            waiting = self.journal.candidates(stream, self._limits.batches)
            taken = self._that_fit(waiting)
            if not taken or not (force or len(taken) == self._limits.batches or len(taken) < len(waiting)):
                return None
            refused = self._too_large(taken) or self._screen(stream, taken)
            if not refused:
                return self._plan_of(stream, taken)
            self.journal.reject(refused)

    def _that_fit(self, waiting: Sequence[CutCandidate]) -> Sequence[CutCandidate]:
        """The first candidates up to the limit of bytes, at least one."""
        totals = itertools.accumulate(candidate.size for candidate in waiting)
        fitting = sum(1 for total in totals if total <= self._limits.cut_bytes)
        return waiting[: max(1, fitting)]

    def _too_large(self, taken: Sequence[CutCandidate]) -> dict[int, str]:
        """Reasons why batches do not fit in a file, by ordinal."""
        limit = self._limits.file_bytes
        return {
            candidate.seq: f"the batch has {candidate.size:,} bytes; the limit of a batch file is {limit:,} bytes"
            for candidate in taken
            if candidate.size > limit
        }

    def _screen(self, stream: BatchStream, taken: Sequence[CutCandidate]) -> dict[int, str]:
        """Reasons why readers would reject batches, by ordinal."""
        ids = list(self.journal.message_ids(stream, taken[-1].seq))
        if len(ids) != len(taken):
            raise JournalBusyError
        members = BatchMembers.of([candidate.batch for candidate in taken], ids)
        refused = self._observer.index.check_duplicates(stream.log, members)
        return {taken[ordinal].seq: reason for ordinal, reason in refused.items()}

    def _plan_of(self, stream: BatchStream, taken: Sequence[CutCandidate]) -> CutPlan:
        last = taken[-1].seq
        rejects = self._waiting_rejects(stream, last)
        manifest = build_manifest(stream, self.journal.waiting_parts(stream, last), rejects, self._limits.file_bytes)
        if manifest.count != len(taken):
            raise JournalBusyError
        return self._plan_under(manifest, stream, last, rejects)

    def _waiting_rejects(self, stream: BatchStream, last_seq: int) -> Sequence[tuple[int, str]]:
        """The rejects of the next cut. Those that an anchor has are dropped: a journal whose database was lost, or
        restored from a backup, takes them again."""
        while True:
            rejects = self.journal.waiting_rejects(stream, last_seq, self._limits.rejects)
            if not rejects or not self.is_journal_behind():
                return rejects
            anchored = self.index.rejected(stream.log, [number for number, _ in rejects])
            if not anchored:
                return rejects
            self.journal.drop_rejects(stream.log, anchored)

    def _plan_under(
        self, manifest: CutManifest, stream: BatchStream, last_seq: int, rejects: Sequence[tuple[int, str]]
    ) -> CutPlan:
        data, head = encode_manifest(manifest), self._ledger.head()
        return CutPlan(
            stream=stream,
            last_seq=last_seq,
            last_reject=rejects[-1][0] if rejects else 0,
            batches=manifest.count,
            rejects=len(rejects),
            anchor_string=anchor_string(manifest.count, cid_of(data)),
            manifest=data,
            ledger_after=head.number if head else 0,
        )

    def _finish(self, cut: JournalCut, content: Mapping[str, AnchoredBatches] = {}) -> LedgerEntry:
        """Take *cut* from where it stands to the end; *content* is what some of its files hold, by their CIDs."""
        with tracing.span("cut", cut=cut.cut, anchor_string=cut.anchor_string):
            with tracing.span(
                "write files"
            ):  # also where it is anchored already: this restores a file that was lost since
                self._write_files(cut)
            if cut.state == BatchState.CUT:
                with tracing.span("append to the ledger"):
                    entry = append_when_free(self._ledger, cut.anchor_string, self._clock, after=cut.ledger_after)
                cut = self.journal.anchored(cut, entry.number)
            else:
                entry = self._anchored_entry(cut)
            with tracing.span("read back"):
                self._observer.observe(content)
            self.journal.observed(cut, self._refused(cut, entry))
            return entry

    def _write_files(self, cut: JournalCut) -> None:
        manifest, expected = decode_manifest(cut.manifest), list[str]()
        if self.journal.is_packed(cut):
            self._check_stored(manifest)
            parts: Iterable[BatchFilePart] = ()
        else:
            parts = self.journal.cut_parts(cut)
            expected += [file.uri for file in manifest.files]
        expected += [file.uri for file in manifest.rejects.files]
        files = build_files(manifest, parts, self.journal.cut_rejects(cut))
        *written, _ = self._cas.put_many(itertools.chain(files, [cut.manifest]))
        if written == expected:
            return
        if cut.cut not in {each.cut for each in self.journal.open_cuts()}:
            raise JournalBusyError  # another process has just finished it
        raise AnchoringError(
            f"the batches of cut {cut.cut} do not match its prepared files: the node's database is damaged, or another "
            f"program changed it. {RESTORE_DATABASE}"
        )

    def _check_stored(self, manifest: CutManifest) -> None:
        """Raise where a batch file, which was there when the cut was written down, has gone since."""
        for file in manifest.files:
            if not self._cas.has(file.uri):
                raise not_found(file.uri)

    def _anchored_entry(self, cut: JournalCut) -> LedgerEntry:
        entry = self._ledger.find(cut.anchor_string, after=cut.ledger_after)
        if entry is None or entry.number != cut.anchor:
            raise AnchoringError(
                f"the node's database records that batches were anchored as entry {cut.anchor} of the ledger, but the "
                f"ledger has no such entry: restore {NODE_LOGS} from a backup, or read the ledger again as "
                'docs/how-to/recover.md says under "Entries of a ledger are lost"'
            )
        return entry

    def _refused(self, cut: JournalCut, entry: LedgerEntry) -> Mapping[str, str]:
        """The batches of *cut* that the observer found invalid in *entry*, with reasons."""
        status = require_observed(self.index.anchor(entry.number), entry)
        if status.reason is not None:
            whole = f"anchor {entry.number} is invalid: {status.reason}"
            return dict.fromkeys(self.journal.members(cut), whole)
        return self.index.refused(entry.number)
