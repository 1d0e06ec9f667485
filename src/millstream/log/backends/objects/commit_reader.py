"""Reads the commits of one log: heads one after the other or side by side, and blocks, checked against the heads."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.commit_object import (
    ADVICE,
    BlockEntry,
    CommitObject,
    HeadTooLongError,
    commit_text,
    decode_commit,
)
from millstream.log.backends.objects.names import LogNames
from millstream.log.errors import DamagedLogError

NEAR_BYTES = 256 << 10
"""Bytes that are read at once of a commit near the end, whose blocks are likely to be read next."""

FAR_BYTES = 16 << 10
"""Bytes that are read at once of a commit for its head."""

SIDE_BY_SIDE = 32
"""How many requests are under way at once, at most."""

_HEADS = 2048
_PAGE = 1000
_OVERHEAD = 300
"""Memory that a block in the cache takes besides its bytes."""


class DamagedHead(NamedTuple):
    """A commit that is there, but whose head is damaged as *error* says."""

    number: int
    error: DamagedLogError


class BlockCache:
    """The blocks that were read or written last, up to *max_bytes*. Thread-safe; shared by the logs of a store."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, sha256: bytes) -> bytes | None:
        """The block with that SHA-256, if it is there."""
        with self._lock:
            data = self._blocks.get(sha256)
            if data is not None:
                self._blocks.move_to_end(sha256)
            return data

    def add(self, sha256: bytes, data: bytes) -> None:
        """Keep *data* until others have taken its place."""
        with self._lock:
            if sha256 in self._blocks or len(data) > self._max_bytes:
                return
            self._blocks[sha256] = data
            self._bytes += len(data) + _OVERHEAD
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._blocks.popitem(last=False)[1]) + _OVERHEAD

    def clear(self) -> None:
        """Keep none of them."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


class CommitReader:
    """Commits of the log of *names* in *bucket*. Thread-safe; *pool* is where requests run side by side."""

    def __init__(self, bucket: Bucket, names: LogNames, cache: BlockCache, pool: ThreadPoolExecutor) -> None:
        self._bucket, self._names, self._cache, self._pool = bucket, names, cache, pool
        self._lock = threading.Lock()
        self._heads: OrderedDict[int, CommitObject] = OrderedDict()

    def count_listed(self, number: int) -> int:
        """How many commits from *number* on a listing shows without a gap; there may be more, or fewer."""
        count, after = 0, self._names.commit(number - 1)
        while True:
            names = self._bucket.list(self._names.commits, after, _PAGE)
            listed = self._names.commit_numbers(names)
            if listed != list(range(number + count, number + count + len(listed))):
                return count  # it is stale
            count += len(listed)
            if len(names) < _PAGE:
                return count
            after = names[-1]

    def last_listed(self, number: int) -> int:
        """The greatest number in a listing of what comes after *number*; *number* where nothing is listed."""
        after = self._names.commit(number)
        while True:
            names = self._bucket.list(self._names.commits, after, _PAGE)
            listed = self._names.commit_numbers(names)
            if listed or len(names) < _PAGE:
                return max(listed, default=number)
            after = names[-1]  # a page of other programs' objects

    def read_side_by_side(self, numbers: Sequence[int], size: int) -> Sequence[CommitObject | DamagedHead]:
        """The commits of *numbers*, up to the first that is missing; *size* bytes of each are read at first."""
        read = functools.partial(self._read_or_damaged, size=size)
        answers = list(map(read, numbers) if len(numbers) < 2 else self._pool.map(read, numbers))
        return [found for found in itertools.takewhile(lambda found: found is not None, answers) if found is not None]

    def _read_or_damaged(self, number: int, size: int) -> CommitObject | DamagedHead | None:
        try:
            return self.read_head(number, size)
        except DamagedLogError as error:
            return DamagedHead(number, error)

    def read_head(self, number: int, size: int = FAR_BYTES) -> CommitObject | None:
        """Commit *number* as it is in the bucket; None where it is missing. *size* bytes are read at first.

        Raises :class:`~millstream.log.errors.DamagedLogError`.
        """
        name = self._names.commit(number)
        data = self._bucket.get(name, 0, size)
        if data is None:
            return None
        try:
            commit = decode_commit(self._names.log, number, data)
        except HeadTooLongError as error:
            data = self._bucket.get(name, 0, error.needed)
            if data is None:
                return None
            if len(data) < error.needed:
                raise DamagedLogError(
                    f"{commit_text(self._names.log, number)} is damaged: it has {len(data):,} bytes, but its head has "
                    f"{error.needed:,} bytes. {ADVICE}"
                ) from error
            commit = decode_commit(self._names.log, number, data)
        self.keep(commit, data)
        return commit

    def keep(self, commit: CommitObject, data: bytes) -> None:
        """Keep the head of *commit* and those of its blocks that are whole in *data*, the object's first bytes."""
        with self._lock:
            self._heads[commit.head.number] = commit
            while len(self._heads) > _HEADS:
                self._heads.popitem(last=False)
        for block in commit.head.blocks:
            start = commit.data_start + block.offset
            if start + block.size <= len(data):
                self._keep_block(block, data[start : start + block.size])

    def forget(self) -> None:
        """Forget what was read and written: it is read from the bucket again."""
        with self._lock:
            self._heads.clear()
        self._cache.clear()

    def read_all(self, numbers: Sequence[int]) -> Sequence[CommitObject | DamagedHead | None]:
        """The commits of *numbers* as they are in the bucket; None where one is missing."""
        return list(self._pool.map(functools.partial(self._read_or_damaged, size=FAR_BYTES), numbers))

    def head(self, number: int, digest: bytes) -> CommitObject | DamagedHead | None:
        """The commit with that number and *digest*; None where it is missing or another."""
        with self._lock:
            commit = self._heads.get(number)
        if commit is None or commit.digest != digest:
            found = self._read_or_damaged(number, FAR_BYTES)
            if isinstance(found, DamagedHead):
                return found
            commit = found
        return commit if commit is not None and commit.digest == digest else None

    def heads(self, wanted: Sequence[tuple[int, bytes]]) -> Sequence[CommitObject | DamagedHead | None]:
        """As :meth:`head` for each number and digest; those that are not known are read side by side."""
        if len(wanted) < 2 or self._knows(wanted):
            return [self.head(number, digest) for number, digest in wanted]
        return list(self._pool.map(lambda one: self.head(*one), wanted))

    def _knows(self, wanted: Sequence[tuple[int, bytes]]) -> bool:
        with self._lock:
            return all(number in self._heads for number, _ in wanted)

    def blocks(self, wanted: Sequence[tuple[CommitObject, BlockEntry]]) -> Sequence[bytes | None]:
        """The bytes of the *wanted* blocks, in that order; None where their object is missing.

        Bytes that are not those that were written are returned as they are.
        """
        found = [self._cache.get(block.sha256) for _, block in wanted]
        runs = list(_runs([index for index, data in enumerate(found) if data is None], wanted))
        read: Callable[[list[int]], list[bytes | None]] = lambda run: self._read_run([wanted[index] for index in run])  # noqa: E731
        answers = [read(run) for run in runs] if len(runs) < 2 else self._pool.map(read, runs)
        for run, blocks in zip(runs, answers, strict=True):
            for index, data in zip(run, blocks, strict=True):
                found[index] = data
        return found

    def _read_run(self, run: Sequence[tuple[CommitObject, BlockEntry]]) -> list[bytes | None]:
        """Blocks that lie side by side in one object."""
        commit, first = run[0]
        last = run[-1][1]
        name = self._names.commit(commit.head.number)
        size = last.offset + last.size - first.offset
        data = self._bucket.get(name, commit.data_start + first.offset, size)
        if data is None:
            return [None] * len(run)
        parts = [data[block.offset - first.offset :][: block.size] for _, block in run]
        for (_, block), part in zip(run, parts, strict=True):
            self._keep_block(block, part)
        return list(parts)

    def _keep_block(self, block: BlockEntry, data: bytes) -> None:
        if is_block(block, data):
            self._cache.add(block.sha256, data)


def is_block(block: BlockEntry, data: bytes) -> bool:
    """Whether *data* are the bytes of *block*."""
    return hashlib.sha256(data).digest() == block.sha256


def _runs(missing: Sequence[int], wanted: Sequence[tuple[CommitObject, BlockEntry]]) -> Iterator[list[int]]:
    """The indexes in *missing*, together where their blocks follow one another in one object."""
    run: list[int] = []
    for index in missing:
        if run and (run[-1] != index - 1 or wanted[run[-1]][0] is not wanted[index][0]):
            yield run
            run = []
        run.append(index)
    if run:
        yield run
