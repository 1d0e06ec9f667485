"""What the benchmark of the mill works with: trees of files in a local store, and a mill on a database of its own."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.core.interpreter import collecting_seldom
from millstream.log import open_store
from millstream.mill.adoption.adopter import Adopter
from millstream.mill.adoption.adoption_run import AdoptionTarget
from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.audit.audit_queue import AuditQueue
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.differences import DuplicationPlan
from millstream.mill.duplication.direct import DirectDuplicator
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.sweep import check_space
from millstream.mill.manifest import Manifest
from millstream.mill.merge_join import groups
from millstream.mill.policies.policy import Pair
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.report import ReportResult, SpaceTally
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Audit, Duplicate, QueueName
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.queue import LogWorkQueue, WorkQueue, queue_log
from millstream.stores import FolderStore, ItemInfo, LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import NewItem
from millstream.stores.processes.child_pool import BulkProcesses

SOURCE, COPY = "source", "copy"
PAIR = Pair(SOURCE, COPY)
SMALL, LARGE = "small", "large"
"""The spaces of a tree."""

_MEBIBYTE = 1 << 20


class FileTree(msgspec.Struct, frozen=True):
    """A space of *files* files with *bytes* bytes in all, in the folder of a local store."""

    space: str
    files: int
    bytes: int

    def folder(self, root: Path) -> Path:
        """Where its files lie in a store at *root*: plain files under their names."""
        return root / self.space


def small_files(count: int) -> FileTree:
    """*count* files of 1 to 8 KiB, a thousand in a folder."""
    return FileTree(SMALL, count, sum(_sizes(count)))


def large_files(total: int) -> FileTree:
    """Files of 128 MiB (or one smaller one) with *total* bytes in all."""
    return FileTree(LARGE, -(-total // (128 * _MEBIBYTE)), total)


def fill(store: LocalStore, tree: FileTree) -> None:
    """Put the files of *tree* into *store*, so that it has a checksum of each."""
    store.create_space(tree.space)
    if tree.space == SMALL:
        for some in groups(_small_items(tree.files), 200):
            assert all(isinstance(one, ItemInfo) for one in store.bulk.put(tree.space, some))
        return
    for number in range(tree.files):
        size = min(128 * _MEBIBYTE, tree.bytes - number * 128 * _MEBIBYTE)
        source = io.BufferedReader(_Blocks(random.Random(number), size), _MEBIBYTE)
        store.put(tree.space, f"file {number:03}.dat", cast(BinaryIO, source))


def write_plain(root: Path, tree: FileTree) -> None:
    """Write the small files of *tree* below *root*, as another program does."""
    for item in _small_items(tree.files):
        path = tree.folder(root) / item.content_id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.data)


def _small_items(count: int) -> Iterator[NewItem]:
    block = random.Random(1).randbytes(_MEBIBYTE)
    for number, size in enumerate(_sizes(count)):
        start = number * 509 % (_MEBIBYTE - 8192)
        body = number.to_bytes(8, "big") + block[start : start + size - 8]
        yield NewItem(f"{number // 1000:03}/file {number:06}.dat", body, hashlib.sha256(body).hexdigest())


def _sizes(count: int) -> list[int]:
    draw = random.Random(0)
    return [draw.randrange(1024, 8192) for _ in range(count)]


class _Blocks(io.RawIOBase):
    """*size* bytes drawn from *draw*."""

    def __init__(self, draw: random.Random, size: int) -> None:
        super().__init__()
        self._draw, self._left = draw, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        count = min(len(buffer), self._left)
        buffer[:count] = self._draw.randbytes(count)
        self._left -= count
        return count


class MillFixture:
    """A mill with the stores ``source`` (at *source*) and ``copy`` (in *folder*, audited), made for a benchmark."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self.clock = folder, SystemClock()
        folder.mkdir(parents=True)
        self._resources = contextlib.ExitStack()
        self.engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}", connect_args={"timeout": 30})
        sa.event.listen(self.engine, "connect", _make_durable)
        self._resources.callback(self.engine.dispose)
        self.manifest, self.audit_log = Manifest(self.engine), AuditLog(self.engine)
        self.outbox = AuditOutbox(self.engine, self.clock)
        self._processes = processes = self._resources.enter_context(BulkProcesses())
        copy = AuditedStore(LocalStore(folder / COPY, processes=processes), self.outbox, COPY)
        self.providers = ConfiguredStores({SOURCE: LocalStore(source, processes=processes), COPY: copy}, self.clock)
        lookup = AuditLookup(self.audit_log, self.outbox, [COPY])
        self.checker = BitChecker(self.providers, self.manifest, lookup)
        self.writer = CheckWriter(self.manifest, BitLog(self.engine))
        self._logs = self._resources.enter_context(open_store(f"sqlite:///{folder / 'log.db'}", clock=self.clock))
        self.low, self.audit = self._queue("low"), AuditQueue(self._queue("audit"), self.outbox)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path, source: Path) -> Iterator[MillFixture]:
        """A workshop whose folder is removed when the block is left."""
        shop = cls(folder, source)
        try:
            yield shop
        finally:
            shop.close()
            shutil.rmtree(folder)

    def close(self) -> None:
        self._resources.close()

    def plan(self, tree: FileTree, queue: WorkQueue | None) -> DuplicationPlan:
        """A loop of the producer over the space of *tree*: record what is new, and queue what differs."""
        return plan_space_duplication(self.providers, self.manifest, PAIR, tree.space, queue, record=True)

    @collecting_seldom()
    def duplicate(self, tree: FileTree) -> None:
        """Copy what differs, prove it, and process the audit of it, as ``millstream mill duplicate`` does."""
        duplication = DuplicationProcessor(self.providers, self.manifest)
        audit = AuditProcessor(self.outbox, lambda: Policies({}))
        queues: dict[str, WorkQueue] = {QueueName.DUPLICATION_LOW: self.low, QueueName.AUDIT: self.audit}
        sink = ResultSink(self.manifest, queues, (self.audit_log, self.outbox))
        direct = DirectDuplicator(duplication, sink.settle, audit, self.outbox)
        plan_space_duplication(self.providers, self.manifest, PAIR, tree.space, self.low, record=True, direct=direct)
        registry = ProcessorRegistry({Duplicate: duplication, Audit: audit})
        settings = WorkerSettings(threads=8)
        tally = WorkerManager([self.low, self.audit], registry, sink, self.clock, settings).run_until_drained()
        assert (tally.failed, tally.dead) == (0, 0), "every task was done"
        assert self.manifest.count(COPY, tree.space) == tree.files, "every copy is recorded"

    @collecting_seldom()
    def sweep(self, tree: FileTree, *, threads: int) -> SpaceTally:
        """Read every byte of the copies, compare all four sources, and write down what was found."""
        tally = check_space(
            self.providers, self.manifest, COPY, tree.space, threads=threads, checker=self.checker, writer=self.writer
        )
        assert tally.result == ReportResult.SUCCESS and tally.listed == tree.files, "every copy is in order"
        assert tally.bytes == tree.bytes, "every byte was read"
        return tally

    @collecting_seldom()
    def adopt(self, tree: FileTree, source: Path) -> None:
        """Adopt the files of *tree* in the folder *source*, of which nothing is known."""
        folder = FolderStore(tree.folder(source), space=tree.space, processes=self._processes)
        target = AdoptionTarget(folder, SOURCE, AdoptionCatalog(self.engine), self.manifest, self.clock)
        assert Adopter(target).adopt(tree.space).read_bytes == tree.bytes, "every byte was read"

    def _queue(self, name: str) -> LogWorkQueue:
        queue = LogWorkQueue(self._logs.log(queue_log(name)), clock=self.clock)
        self._resources.callback(queue.close)
        return queue


def _make_durable(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA cache_size=-16384")  # KiB, as a node has it
    cursor.close()
