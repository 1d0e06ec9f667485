"""One log in a bucket: all that belongs to it, and what a writer does to it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.log.backend import Commit
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.commit_chain import ChainEnd, CommitChain
from millstream.log.backends.objects.commit_object import (
    ADVICE,
    CommitHeader,
    CommitObject,
    commit_text,
    encode_commit,
    encode_head,
)
from millstream.log.backends.objects.commit_reader import BlockCache, CommitReader
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.epochs import Epochs
from millstream.log.backends.objects.layouts import Layout, Layouts
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.sealed_space import SealedSpace
from millstream.log.backends.objects.small_objects import decode_object
from millstream.log.backends.objects.states import States
from millstream.log.errors import DamagedLogError, FencedError, LogError
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks

FORMAT = 1
FENCES = 100
"""How many commits without blocks are trimmed together, where there is nothing else to trim."""

SWEEP = 1000
"""How many trimmed commits are deleted at once."""


class CreatedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The object whose creation makes a log."""

    format: int
    log: str
    first_id: int
    kind: str
    nonce: str

    def states(self) -> dict[str, bytes]:
        """The states that the log has from the beginning."""
        states = {KIND: self.kind.encode()}
        if self.first_id > 1:
            states[WATERMARKS] = encode_watermarks(Watermarks(self.first_id, self.first_id))
        return states


class ObjectLog:
    """The log that was made by the object *name*, which is *data*. Thread-safe."""

    def __init__(
        self, bucket: Bucket, clock: Clock, cache: BlockCache, pool: ThreadPoolExecutor, *, name: str, data: bytes
    ) -> None:
        self.created = decode_object(name, data, CreatedLog)
        self._bucket, self._clock = bucket, clock
        self.names = LogNames(self.created.log)
        first = Layout(previous=hashlib.sha256(data).digest(), last_id=self.created.first_id - 1)
        self.layouts = Layouts(bucket, self.names, clock, first)
        self.reader = CommitReader(bucket, self.names, cache, pool)
        self.chain = CommitChain(self.reader, self.layouts)
        self.epochs = Epochs(bucket, self.names, clock)
        self.sealed = SealedSpace(bucket, self.names.root, clock)
        self.states = States(bucket, self.names, clock, pool, self.created.states())
        self._committing = threading.Lock()
        self._nonce = secrets.token_hex(8)
        self._may_have_leftovers = True  # of a process that was killed

    def take_over(self, epoch: int, holder: bytes, until: int) -> bool:
        """Make *holder* the writer of *epoch* + 1, if the epoch still is *epoch*; no older one commits after that.

        Raises :class:`~millstream.log.errors.DamagedLogError` where a commit is missing before others: a fence in its
        place would cut them off for good. Also where the last one is gone that this process knows: the fence would lie
        behind the hole.
        """
        end = self.chain.refresh()
        self.require_end()
        if missing := self.missing_after(end):
            raise DamagedLogError(f"cannot write to log {self.names.log!r}: {missing}. {ADVICE}")
        if self.epochs.newest() != epoch or not self.epochs.take(epoch + 1, holder, until):
            return False
        try:
            with self._committing:
                while (end := self.chain.refresh()).epoch < epoch + 1:
                    head = msgspec.structs.replace(self._head(end, epoch + 1), is_fence=True)
                    self._create(*encode_head(head))
        except LogError:
            with contextlib.suppress(LogError):
                self.epochs.release(epoch + 1)  # else nobody could write until the lease ends
            raise
        return end.epoch == epoch + 1

    def commit(self, commit: Commit) -> None:
        """Add *commit*. Raises :class:`~millstream.log.errors.FencedError`."""
        with self._committing:
            end = self.chain.end
            if (end.epoch, end.last_id) != (commit.epoch, commit.previous_id):
                end = self.chain.refresh()
            if (end.epoch, end.last_id) != (commit.epoch, commit.previous_id):
                raise self._fenced("was not stored: stop one of the two, and append the data again")
            if not self._create(*encode_commit(self._head(end, commit.epoch), commit)):
                raise self._fenced(
                    "may have been stored: stop one of the two, read the end of the log, and append what is missing"
                )

    def require_end(self) -> None:
        """Raise :class:`~millstream.log.errors.DamagedLogError` where the last commit that is known is gone.

        An older copy of the bucket was put in its place, or a rule of the bucket deleted it: what a writer added would
        lie behind a hole, where nobody reads it.
        """
        end = self.chain.end
        if end.number < max(self.layouts.newest.start, 1):
            return
        found = self.reader.read_head(end.number)
        if (found is None or found.digest != end.digest) and self.layouts.refresh().start <= end.number:
            raise DamagedLogError(
                f"{commit_text(self.names.log, end.number)}, which this process knows, is "
                f"{'missing from' if found is None else 'another one in'} the bucket. {ADVICE}"
            )

    def missing_after(self, end: ChainEnd) -> str:
        """The error if the commit after *end*, the last that was found, is missing and later ones exist. A writer
        creates a number only after the previous one, so the commit was deleted. Listings that are old say nothing
        wrong: a later commit must exist, and *end* still be the last one after it was listed.
        """
        later = self.reader.last_listed(end.number)
        is_cut_off = (
            later > end.number + 1 and self.reader.read_head(later) and self.chain.refresh().number == end.number
        )
        missing = (
            f"{commit_text(self.names.log, end.number + 1)} is missing from the bucket, so later commits cannot be read"
        )
        return missing if is_cut_off else ""

    def _head(self, end: ChainEnd, epoch: int) -> CommitHeader:
        """A head that continues *end* without adding to it."""
        return CommitHeader(
            log=self.names.log,
            number=end.number + 1,
            epoch=epoch,
            nonce=self._nonce,
            previous=end.digest,
            previous_id=end.last_id,
            last_id=end.last_id,
            received_at=end.received_at,
        )

    def _create(self, commit: CommitObject, data: bytes) -> bool:
        """Create *commit*, and make sure that it is part of the chain.

        It is, if the layout, looked at after it was created, begins at or before it: a name from there on was never
        deleted, so that no process has seen another object of that name.
        """
        number = commit.head.number
        if not create_object(self._bucket, self.names.commit(number), data, self._clock):
            return False
        if self.layouts.refresh().start > number:
            return False
        self.reader.keep(commit, data)
        self.chain.append(commit)
        return True

    def _fenced(self, outcome: str) -> FencedError:
        return FencedError(
            f"another writer has taken over log {self.names.log!r}; the last data of this writer {outcome}"
        )

    def reclaim(self, below: int, max_bytes: int) -> int:
        """Trim commits that end below the id *below*, about *max_bytes*; returns the bytes of their blocks.

        The newest commit stays: it says where the log ends.
        """
        while True:
            self.chain.refresh()
            start, freed = self.chain.oldest(below, max_bytes)
            if not freed and start - self.layouts.newest.start < FENCES:
                if self._may_have_leftovers and self.layouts.newest.start > 1:
                    self._sweep()
                return 0
            layout = self.chain.layout_from(start)
            if layout is not None and self.layouts.create(layout):
                break
        self._may_have_leftovers = True
        self.chain.cut()
        self._sweep()
        return freed

    def _sweep(self) -> None:
        """Delete what lies below the start: trimmed, left by a crash, or created again by a writer that was late."""
        start, after = self.layouts.newest.start, ""
        while True:
            listed = self._bucket.list(self.names.commits, after, SWEEP)
            numbers = self.names.commit_numbers(listed)
            leftovers = [self.names.commit(number) for number in numbers if number < start]
            self._bucket.delete(leftovers)
            if len(listed) < SWEEP or listed[-1] >= self.names.commit(start):
                self._may_have_leftovers = False
                return
            after = listed[-1]
