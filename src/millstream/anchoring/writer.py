"""The batch writer: accepts encoded batches, and sees each through to exactly one anchor (promise P7).

prepare (write the cut down) → write the files → anchor → observe → forget. Each step may be done again, so a writer
that died at any point is replaced by one that calls :meth:`BatchWriter.recover`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import AnchoringError, BatchFormatError, JournalBusyError
from millstream.anchoring.files import Part, checked_batch, pack_batches, pack_rejects
from millstream.anchoring.journal import Journal
from millstream.anchoring.ledger import Ledger, LedgerEntry
from millstream.anchoring.manifest import (
    MAX_BATCHES,
    MAX_CONTENT_BYTES,
    MAX_FILE_BYTES,
    MAX_REJECTS,
    BatchFile,
    Manifest,
    RejectFile,
    Rejects,
    anchor_string,
    decode_manifest,
    encode_manifest,
)
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.anchoring.observer import Observer
from millstream.anchoring.records import PROTOCOL, EncodedBatch
from millstream.anchoring.screening import Member
from millstream.anchoring.states import Added, BatchState, Candidate, Cut, Plan, Stream
from millstream.core.cid import cid_of


class Reject(Protocol):
    """A message that is in no batch (:class:`millstream.batching.Reject`)."""

    @property
    def rejected(self) -> int: ...

    @property
    def reason(self) -> str: ...


class CutLimits(msgspec.Struct, frozen=True):
    """When a cut is full: at so many batches, or so many bytes of batch files; and how large one file may be.

    The defaults are the limits of the format, which no setting may exceed.
    """

    batches: int = MAX_BATCHES
    file_bytes: int = MAX_FILE_BYTES
    cut_bytes: int = MAX_CONTENT_BYTES

    def __post_init__(self) -> None:
        for name, limit in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if not 1 <= getattr(self, name) <= limit:
                raise BatchFormatError(f"{name} of a cut is 1 to {limit:,}, not {getattr(self, name):,}")


class BatchWriter:
    """Accepts batches into *journal* and anchors them in *ledger* through *cas*. Thread-safe.

    One writer cuts at a time: another process on the same journal gets a ``BusyError``, never a second anchor.
    """

    def __init__(
        self, journal: Journal, cas: Cas, ledger: Ledger, observer: Observer, *, limits: CutLimits | None = None
    ) -> None:
        self.journal = journal
        self._cas = cas
        self._ledger = ledger
        self._observer = observer
        self._limits = limits or CutLimits()
        self._cutting = threading.Lock()

    def add(
        self,
        log: str,
        batches: Iterable[EncodedBatch],
        rejects: Iterable[Reject] = (),
        *,
        config: Mapping[str, Any],
    ) -> Added:
        """Accept *batches* and *rejects* of *log* durably, all or none; what is known already is not added again.

        *config* is the batching configuration as JSON members; it goes into the manifest. Rejects travel with the next
        batch of the same log and configuration. One call is one transaction: hand over thousands, not millions.
        Raises :class:`BatchFormatError` where a batch does not hold what its header says.
        """
        checked = list(map(checked_batch, batches))
        return self.journal.add(log, config, checked, [(reject.rejected, reject.reason) for reject in rejects])

    def cut(self, *, force: bool = False) -> Sequence[LedgerEntry]:
        """Anchor every full cut, and with *force* whatever waits; returns the new ledger entries.

        A batch that no reader would take (too large, or with a message that is anchored already) is rejected with
        that reason, and the others go on. Whatever fails in between is finished by the next call. Raises
        :class:`ObservationBlockedError` where an anchored file cannot be read back, :class:`CasError`, and a
        ``BusyError`` while another process writes to the ledger or the journal.
        """
        with self._cutting:
            entries = self._finish_open()
            self._observer.observe()  # so that screening knows every anchor
            for stream in self.journal.streams():
                while plan := self._plan(stream, force):
                    entries.append(self._finish(self.journal.prepare(plan)))
            return entries

    def recover(self) -> Sequence[LedgerEntry]:
        """Finish what a dead writer left; returns the entries of the cuts that were finished. To be called at start."""
        with self._cutting:
            return self._finish_open()

    def _finish_open(self) -> list[LedgerEntry]:
        return [self._finish(cut) for cut in self.journal.open_cuts()]

    def _plan(self, stream: Stream, force: bool) -> Plan | None:
        """The next cut of *stream*, None where nothing is to be cut."""
        while True:
            waiting = self.journal.candidates(stream, self._limits.batches)
            taken = self._that_fit(waiting)
            if not taken or not (force or len(taken) == self._limits.batches or len(taken) < len(waiting)):
                return None
            refused = self._screen(stream, taken)
            if not refused:
                return self._plan_of(stream, taken)
            self.journal.reject(refused)

    def _that_fit(self, waiting: Sequence[Candidate]) -> Sequence[Candidate]:
        """The first candidates up to the limit of bytes, at least one."""
        totals = itertools.accumulate(candidate.size for candidate in waiting)
        fitting = sum(1 for total in totals if total <= self._limits.cut_bytes)
        return waiting[: max(1, fitting)]

    def _screen(self, stream: Stream, taken: Sequence[Candidate]) -> dict[int, str]:
        """Why batches would be refused by every reader, by their place in the order of adding."""
        limit = self._limits.file_bytes
        refused = {
            candidate.seq: f"the batch has {candidate.size:,} bytes; a batch file holds at most {limit:,}"
            for candidate in taken
            if candidate.size > limit
        }
        ids = list(self.journal.message_ids(stream, taken[-1].seq))
        if len(ids) != len(taken):
            raise JournalBusyError
        members = [Member(candidate.batch, own) for candidate, own in zip(taken, ids, strict=True)]
        for ordinal, reason in self._observer.index.screen(stream.log, members).items():
            refused.setdefault(taken[ordinal].seq, reason)
        return refused

    def _plan_of(self, stream: Stream, taken: Sequence[Candidate]) -> Plan:
        last, leaves, files = taken[-1].seq, list[bytes](), list[BatchFile]()
        parts = self.journal.waiting_parts(stream, last)
        for file in pack_batches(_noting_leaves(parts, leaves), self._limits.file_bytes):
            files.append(BatchFile(file.entries, len(file.data), file.messages, cid_of(file.data)))
        if len(leaves) != len(taken):
            raise JournalBusyError
        rejects = self.journal.waiting_rejects(stream, last, MAX_REJECTS)
        reject_files = [
            RejectFile(len(file.data), file.entries, cid_of(file.data))
            for file in pack_rejects(rejects, self._limits.file_bytes)
        ]
        manifest = Manifest(
            config=msgspec.json.decode(stream.config),
            count=len(leaves),
            files=tuple(files),
            log=stream.log,
            messages=sum(file.messages for file in files),
            protocol=PROTOCOL,
            rejects=Rejects(len(rejects), tuple(reject_files)),
            root=merkle_root(leaves).hex(),
        )
        data, head = encode_manifest(manifest), self._ledger.head()
        name, after = anchor_string(len(leaves), cid_of(data)), head.number if head else 0
        last_reject = rejects[-1][0] if rejects else 0
        return Plan(stream, last, last_reject, len(leaves), len(rejects), name, data, after)

    def _finish(self, cut: Cut) -> LedgerEntry:
        """Take *cut* from where it stands to the end."""
        self._write_files(cut)  # also where it is anchored already: this heals a file that was lost since
        if cut.state == BatchState.CUT:
            entry = self._ledger.append(cut.anchor_string, after=cut.ledger_after)
            cut = self.journal.anchored(cut, entry.number)
        else:
            entry = self._anchored_entry(cut)
        self._observer.observe()
        self.journal.observed(cut, self._refused(cut, entry.number))
        return entry

    def _write_files(self, cut: Cut) -> None:
        # The largest file stands in for the limit that was in force when the cut was prepared: it packs the same files.
        manifest = decode_manifest(cut.manifest)
        limit = max(file.bytes for file in manifest.files)
        reject_limit = max((file.bytes for file in manifest.rejects.files), default=0)
        parts, rejects = self.journal.cut_parts(cut), self.journal.cut_rejects(cut)
        files = itertools.chain(pack_batches(parts, limit), pack_rejects(rejects, reject_limit))
        cids = self._cas.put_many(itertools.chain((file.data for file in files), [cut.manifest]))
        if list(cids[:-1]) != list(manifest.uris):
            if cut.cut not in {each.cut for each in self.journal.open_cuts()}:
                raise JournalBusyError  # another process has just finished it
            raise AnchoringError(
                f"cut {cut.cut} gives other files than when it was prepared: the journal was changed from outside; "
                "restore node.db from a backup"
            )

    def _anchored_entry(self, cut: Cut) -> LedgerEntry:
        entry = self._ledger.find(cut.anchor_string, after=cut.ledger_after)
        if entry is None or entry.number != cut.anchor:
            raise AnchoringError(
                f"cut {cut.cut} was anchored as ledger entry {cut.anchor}, and the ledger does not have it there: "
                "restore the ledger that belongs to this journal"
            )
        return entry

    def _refused(self, cut: Cut, number: int) -> Mapping[str, str]:
        """The batches of *cut* that the observer found invalid, with reasons."""
        status = self._observer.index.anchor(number)
        if status is not None and status.reason is not None:
            whole = f"anchor {number} is invalid: {status.reason}"
            return dict.fromkeys(self.journal.members(cut), whole)
        return self._observer.index.refused(number)


def _noting_leaves(parts: Iterable[Part], leaves: list[bytes]) -> Iterator[Part]:
    for part in parts:
        leaves.append(leaf_hash(part.header_line))
        yield part
