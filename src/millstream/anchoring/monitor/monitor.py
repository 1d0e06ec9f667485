"""Following a ledger from outside: by its published checkpoints, tiles and entries, without trust in its operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from millstream.anchoring.errors import (
    CasUnavailableError,
    EntriesMismatchError,
    LedgerUnavailableError,
    MonitorStateError,
    NoteError,
    ObservationBlockedError,
    PublishedFileError,
)
from millstream.anchoring.merkle import EMPTY_ROOT
from millstream.anchoring.monitor.entry_audit import EntryAudit, FileReplay, read_entries
from millstream.anchoring.monitor.findings import LASTING, FindingKind, MonitorFinding, MonitorReport, finding
from millstream.anchoring.monitor.published_tree import PublishedTree, ReadableFiles
from millstream.anchoring.monitor.state import EntriesPosition, MonitorState, MonitorStateFile
from millstream.anchoring.transparency.checkpoint import Checkpoint, parse_checkpoint
from millstream.anchoring.transparency.policy import TrustPolicy, check_checkpoint, trusting
from millstream.anchoring.transparency.signed_note import parse_note
from millstream.anchoring.transparency.tiles import CHECKPOINT, COSIGNED_CHECKPOINT
from millstream.core.amounts import format_duration
from millstream.core.clock import Clock
from millstream.core.timestamps import format_timestamp

EntryCheck = Literal["ledger", "any", "none"]
"""How entries are checked: as entries of a Millstream ledger, only by their hashes, or not at all."""


class MonitorRules(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to trust (``policy``), and what to check.

    ``silence`` is the longest time without a new checkpoint (None: any), ``tolerance`` how far the time of an entry may
    lie before the last look without it, or after now. Both are microseconds.
    """

    policy: TrustPolicy
    entries: EntryCheck = "ledger"
    silence: int | None = None
    tolerance: int = 600_000_000


class _SignedHead(msgspec.Struct, frozen=True):
    """A checkpoint that a trusted key signed, as it was read."""

    note: str
    checkpoint: Checkpoint
    signed_by: tuple[str, ...]
    witnesses: tuple[str, ...] = ()


class LedgerMonitor:
    """Follows the ledger that is published in *files*, and keeps what it has seen in *store*.

    With *replay* the files of all anchors are read, too. Not thread-safe; a killed monitor resumes where it was.
    """

    def __init__(
        self,
        files: ReadableFiles,
        store: MonitorStateFile,
        rules: MonitorRules,
        clock: Clock,
        replay: FileReplay | None = None,
    ) -> None:
        self._files = files
        self._store = store
        self._rules = rules
        self._clock = clock
        self._replay = replay
        self._audit = EntryAudit(clock, rules.tolerance)

    def look(self, stopping: Callable[[], bool] = lambda: False, *, others: Mapping[str, bytes] = {}) -> MonitorReport:
        """Read what is new, compare it with all that was seen, and return what was checked and found.

        *stopping* is asked between parts of the work; what is left is done at the next look. *others* are checkpoints
        (signed notes) that another reader got, by what they are called. Raises :class:`MonitorStateError` where
        the state cannot be used.
        """
        with self._store.exclusive():
            look = _Look(self._files, self._store, self._rules, self._clock)
            return look.run(self._audit, self._replay, stopping, others)

    def acknowledge(self) -> tuple[MonitorFinding, ...]:
        """Forget the findings that are kept, and return them. What is remembered of the ledger stays."""
        with self._store.exclusive():
            state = self._store.read()
            if state is None:
                return ()
            self._store.write(msgspec.structs.replace(state, findings=(), more_findings=0))
            return state.findings


class _Look:
    """One look at a ledger."""

    def __init__(self, files: ReadableFiles, store: MonitorStateFile, rules: MonitorRules, clock: Clock) -> None:
        self._files = files
        self._store = store
        self._rules = rules
        self._clock = clock
        self._began = clock.now()
        self._passing = list[MonitorFinding]()
        self._state = store.read()
        self._size_before = self._kept().size if self._state else 0
        self._newest: _SignedHead | None = None
        self._cosigned: _SignedHead | None = None

    def run(
        self,
        audit: EntryAudit,
        replay: FileReplay | None,
        stopping: Callable[[], bool],
        others: Mapping[str, bytes],
    ) -> MonitorReport:
        with self._noting():
            self._newest = self._read_head()
            if self._newest is not None and self._follow(self._newest):
                with self._noting():
                    self._follow_cosigned(self._newest)
                for name, note in others.items():
                    with self._noting():
                        self._compare_other(name, note)
                with self._noting():
                    self._audit_entries(audit, stopping)
                with self._noting():
                    if replay is not None:
                        self._replay_files(replay, stopping)
        self._look_for_silence()
        return self._report(replayed=replay is not None)

    def _kept(self) -> Checkpoint:
        assert self._state is not None
        return parse_checkpoint(parse_note(self._state.head.encode()))

    def _keep(self, **changes: object) -> None:
        """Write down the state with *changes*."""
        assert self._state is not None
        self._state = msgspec.structs.replace(self._state, **changes)
        self._store.write(self._state)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Turn errors of what is read into findings."""
        try:
            yield
        except LedgerUnavailableError as error:
            self._find("unavailable", str(error))
        except EntriesMismatchError as error:
            self._find("entries", str(error))
        except PublishedFileError as error:
            self._find("tiles", str(error))

    def _find(self, kind: FindingKind, text: str, *, number: int | None = None, notes: tuple[str, ...] = ()) -> None:
        new = finding(kind, text, self._clock.now(), number=number, notes=notes)
        if kind not in LASTING or self._state is None:
            self._passing.append(new)
        else:
            self._state = self._state.with_findings([new])
            self._store.write(self._state)

    def _read_head(self) -> _SignedHead | None:
        """The newest checkpoint, signed by a trusted key; None where it is not, which is a finding."""
        data = self._files.read(CHECKPOINT)
        if data is None:
            raise PublishedFileError(
                f"{CHECKPOINT} is missing in {self._files}: check the URL or folder, and that the operator of the "
                "ledger publishes it (setting anchoring.tiles)"
            )
        try:
            found = check_checkpoint(data, trusting(self._rules.policy.logs))
        except NoteError as error:
            self._find("signature", f"the checkpoint in {self._files} is not trusted: {error}")
            return None
        return _SignedHead(data.decode(), found.checkpoint, found.signed_by)

    def _follow(self, head: _SignedHead) -> bool:
        """Keep *head* if its tree continues the kept one; whether the published tree is good to be read."""
        new, now = head.checkpoint, self._began
        if self._state is None:
            if new.size == 0 and new.root != EMPTY_ROOT:
                raise PublishedFileError(
                    f"the checkpoint in {self._files} is invalid: the root of an empty tree must be the hash of the "
                    "empty string"
                )
            self._state = MonitorState(origin=new.origin, head=head.note, head_at=now, cosigned_at=now)
            self._state = self._state.with_published(new.size, now)
            self._store.write(self._state)
            return True
        if self._state.origin != new.origin:
            raise MonitorStateError(
                f"the state {self._store.path} belongs to the ledger {self._state.origin}, but {self._files} publishes "
                f"the ledger {new.origin}: use a separate state file (--state) for each ledger"
            )
        kept = self._kept()
        if new.size < kept.size:
            self._compare_smaller(head, kept)
            return False
        if PublishedTree(self._files, new).prefix_root(kept.size) != kept.root:
            self._fork(head, kept)
            return False
        self._state = self._state.with_published(new.size, now)
        self._keep(head=head.note, head_at=self._state.head_at if new.size == kept.size else now)
        return True

    def _compare_smaller(self, head: _SignedHead, kept: Checkpoint) -> None:
        """*head* is smaller than *kept*: an old checkpoint, or one of a forked ledger."""
        assert self._state is not None
        new = head.checkpoint
        try:
            if PublishedTree(self._files, kept).prefix_root(new.size) != new.root:
                self._fork(head, kept)
                return
            text = "an old checkpoint is served again, or the ledger was truncated"
        except PublishedFileError:
            text = "the ledger was truncated or restored from a backup"
        self._find(
            "rollback",
            f"the ledger {new.origin} has {new.size:,} entries, but had {kept.size:,} before: {text}",
            notes=(self._state.head, head.note),
        )

    def _fork(self, head: _SignedHead, kept: Checkpoint) -> None:
        assert self._state is not None
        new = head.checkpoint
        what = (
            f"two trees of {new.size:,} entries with different roots"
            if new.size == kept.size
            else f"trees of {min(new.size, kept.size):,} and {max(new.size, kept.size):,} entries, of which the larger "
            "does not begin with the smaller"
        )
        self._find(
            "fork", f"FORK: the key of the ledger {new.origin} signed {what}", notes=(self._state.head, head.note)
        )

    def _follow_cosigned(self, newest: _SignedHead) -> None:
        """Find the newest checkpoint with the quorum, and compare its tree with the one that is followed."""
        policy = self._rules.policy
        if not policy.missing(()):
            return
        assert self._state is not None
        head = self._with_quorum(newest.note.encode())
        if head is None:
            data = self._files.read(COSIGNED_CHECKPOINT)
            head = self._with_quorum(data) if data is not None else None
        if head is None:
            if self._state.cosigned is not None:
                head = self._with_quorum(self._state.cosigned.encode())
            self._cosigned = head
            return
        self._cosigned = head
        before = self._state.cosigned
        known = parse_checkpoint(parse_note(before.encode())) if before else None
        if known is not None and known.size > head.checkpoint.size:
            self._find(
                "rollback",
                f"the cosigned checkpoint in {self._files} covers {head.checkpoint.size:,} entries, but an earlier one "
                f"covered {known.size:,}: an old checkpoint is served again",
                notes=(before or "", head.note),
            )
            return
        followed = self._kept()
        if head.checkpoint.size > followed.size:
            if not self._follow(head):
                return
        elif PublishedTree(self._files, followed).prefix_root(head.checkpoint.size) != head.checkpoint.root:
            self._fork(head, followed)
            return
        if known is None or known.size < head.checkpoint.size:
            self._keep(cosigned=head.note, cosigned_at=self._began)

    def _compare_other(self, name: str, note: bytes) -> None:
        """Compare the checkpoint *note* that another reader got with the tree that is followed."""
        try:
            found = check_checkpoint(note, trusting(self._rules.policy.logs))
        except NoteError as error:
            self._find("signature", f"the checkpoint in {name} is not trusted: {error}")
            return
        head, followed = _SignedHead(note.decode(), found.checkpoint, found.signed_by), self._kept()
        if head.checkpoint.size > followed.size:
            self._find(
                "rollback",
                f"the checkpoint in {name} covers {head.checkpoint.size:,} entries, but the ledger has published "
                f"only {followed.size:,}: compare the checkpoint again when the ledger has published those entries",
            )
        elif PublishedTree(self._files, followed).prefix_root(head.checkpoint.size) != head.checkpoint.root:
            self._fork(head, followed)

    def _with_quorum(self, data: bytes) -> _SignedHead | None:
        try:
            found = check_checkpoint(data, self._rules.policy)
        except NoteError:
            return None
        return _SignedHead(data.decode(), found.checkpoint, found.signed_by, found.witnesses)

    def _audit_entries(self, audit: EntryAudit, stopping: Callable[[], bool]) -> None:
        if self._rules.entries == "none":
            return
        assert self._state is not None
        if self._state.entries != self._rules.entries:
            again = EntriesPosition() if self._rules.entries == "ledger" else self._state.audited
            self._keep(entries=self._rules.entries, audited=again)
        head = self._kept()
        for part in read_entries(PublishedTree(self._files, head), head.size, self._state.audited):
            if self._rules.entries == "any":
                self._keep(audited=part.after)
            else:
                state, findings = audit.check(self._state, part)
                self._state = state.with_findings(findings)
                self._store.write(self._state)
            if stopping():
                break

    def _replay_files(self, replay: FileReplay, stopping: Callable[[], bool]) -> None:
        """Read the files of audited entries that were not read yet."""
        assert self._state is not None
        head = self._kept()
        position = replay.start(self._state.replayed)
        for part in read_entries(PublishedTree(self._files, head), self._state.audited.size, position):
            for number, line in enumerate(part.lines, position.size + 1):
                if stopping():
                    return
                try:
                    wrong = replay.check(number, line)
                except ObservationBlockedError as error:
                    is_away = isinstance(error.__cause__, CasUnavailableError)
                    self._find("unavailable" if is_away else "file", str(error), number=number)
                    return
                if wrong is not None:
                    self._state = self._state.with_findings([wrong])
            self._keep(replayed=part.after)
            position = part.after

    def _look_for_silence(self) -> None:
        limit, state, now = self._rules.silence, self._state, self._clock.now()
        if limit is None or state is None:
            return
        needs_quorum = self._rules.policy.missing(()) > 0
        since = state.cosigned_at if needs_quorum else state.head_at
        if now - since > limit:
            what = "no new checkpoint with the quorum of witnesses" if needs_quorum else "no new checkpoint"
            limit_text = format_duration(limit)
            self._find("silence", f"{what} since {format_timestamp(since)}; the limit is {limit_text}")

    def _report(self, *, replayed: bool) -> MonitorReport:
        state, newest = self._state, self._newest
        size = self._kept().size if state else 0
        needs_quorum = self._rules.policy.missing(()) > 0
        cosigned = self._cosigned.checkpoint.size if self._cosigned else 0
        return MonitorReport(
            origin=state.origin if state else newest.checkpoint.origin if newest else self._rules.policy.logs[0].name,
            size=size,
            new=size - self._size_before,
            signed_by=newest.signed_by if newest else (),
            cosigned=cosigned if needs_quorum else None,
            witnesses=self._cosigned.witnesses if self._cosigned else (),
            audited=state.audited.size if state and self._rules.entries != "none" else None,
            replayed=state.replayed.size if state and replayed else None,
            findings=(*(state.findings if state else ()), *self._passing),
            more_findings=state.more_findings if state else 0,
        )
