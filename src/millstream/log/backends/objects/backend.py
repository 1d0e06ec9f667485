"""Logs in a bucket: :class:`~millstream.log.backend.Backend` over objects that are created once and never change."""

from __future__ import annotations

import secrets
import shlex
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from millstream.core.clock import Clock
from millstream.log.backend import BlockStatistics, Commit, Head, StoredBlock, VersionedValue, add_statistics
from millstream.log.backends.objects.block_access import BlockAccess, Located
from millstream.log.backends.objects.bucket import Bucket, list_all
from millstream.log.backends.objects.commit_reader import SIDE_BY_SIDE, BlockCache
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.names import LOGS, created_name, log_of
from millstream.log.backends.objects.object_log import FORMAT, CreatedLog, ObjectLog
from millstream.log.backends.objects.probe import check_bucket
from millstream.log.backends.objects.sealed_space import SealedSpace
from millstream.log.block_location import BlockLocation
from millstream.log.errors import DamagedLogError, LogNotFoundError, StorageReadOnlyError
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.kinds import KIND, UNKNOWN
from millstream.log.spec import is_log_name
from millstream.log.watermarks import WATERMARKS

_PRODUCER = "producer/"


class ObjectsBackend:
    """Logs in *bucket*. What is confirmed is as durable as the bucket; see docs/formats/object-log.md."""

    durability = "fsync"
    one_host = False

    def __init__(
        self, bucket: Bucket, clock: Clock, *, read_only: bool = False, pool: ThreadPoolExecutor | None = None
    ) -> None:
        self._bucket, self._clock, self._read_only = bucket, clock, read_only
        self._lock = threading.Lock()
        self._logs: dict[str, ObjectLog] = {}
        self._is_checked = False
        self._cache = BlockCache()
        self._pool = pool or ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="log-objects")

    @property
    def url(self) -> str:
        return self._bucket.url

    def logs(self) -> Sequence[str]:
        """The names of all logs, sorted; objects of other programs below the same prefix are none."""
        names = list_all(self._bucket, LOGS)
        return sorted({*self._logs, *(log for name in names if is_log_name(log := log_of(name)))})

    def kinds(self) -> Mapping[str, str]:
        names = self.logs()
        return dict(zip(names, self._pool.map(self._kind, names), strict=True))

    def _kind(self, log: str) -> str:
        try:
            return self.get_state(log, KIND).value.decode()
        except DamagedLogError:
            return UNKNOWN

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        self._check_writable()
        if self._find(log) is None:
            self._check_bucket()
            created = CreatedLog(format=FORMAT, log=log, first_id=first_id, kind=kind, nonce=secrets.token_hex(8))
            create_object(self._bucket, created_name(log), msgspec.json.encode(created), self._clock)

    def upgrade(self) -> None:
        """Nothing: there is one format."""

    def rename(self, log: str, new: str, *, epoch: int) -> bool:  # noqa: ARG002
        """False: the names of objects cannot change."""
        self._log(log)
        return False

    def head(self, log: str) -> Head:
        stored = self._log(log)
        leased = self._pool.submit(stored.epochs.current)
        marks = stored.states.get(WATERMARKS)  # before the end: it never lies below marks that were read before it
        epoch, lease = leased.result()
        end = stored.chain.refresh()
        head = Head(
            last_id=end.last_id,
            received_at=end.received_at,
            epoch=epoch,
            holder=lease.holder,
            lease_until=lease.until,
        )
        return head.with_watermarks(marks.value)

    def extent(self, log: str) -> Head:
        """As :meth:`head`, without who writes the log."""
        stored = self._log(log)
        marks = stored.states.get(WATERMARKS)  # before the end, as there
        end = stored.chain.refresh()
        return Head(last_id=end.last_id, received_at=end.received_at).with_watermarks(marks.value)

    def is_at_end(self, log: str, last_id: int) -> bool:
        """Whether *last_id* seems to be the last one still, by one request. It may be True too long, for some calls."""
        chain = self._log(log).chain
        return chain.end.last_id <= last_id and not chain.peek()

    def lease_time(self) -> int:
        return self._bucket.server_time()

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        self._check_writable()
        self._check_bucket()
        return self._log(log).take_over(epoch, holder, until)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        self._check_writable()
        stored = self._log(log)
        stored.require_end()
        return stored.epochs.renew(epoch, until)

    def release_lease(self, log: str, *, epoch: int) -> None:
        self._check_writable()
        self._log(log).epochs.release(epoch)

    def commit(self, log: str, commit: Commit) -> None:
        self._check_writable()
        self._log(log).commit(commit)

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        return self._access(log, last_id).read(first_id, last_id, max_bytes)

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        return [
            BlockRange(block.first_id, block.last_id, block.size) for _, block in self._entries(log, first_id, last_id)
        ]

    def locate(self, log: str, first_id: int, last_id: int) -> Sequence[BlockLocation]:
        """Where the blocks lie; see :class:`millstream.log.block_location.LocatesBlocks`."""
        names = self._log(log).names
        return [
            BlockLocation(
                block.first_id,
                block.last_id,
                names.commit(commit.head.number),
                commit.data_start + block.offset,
                block.size,
                block.sha256,
            )
            for commit, block in self._entries(log, first_id, last_id)
            if block.sha256
        ]

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        return [
            IndexEntry(
                block.first_id,
                block.last_id,
                block.size,
                block.min_event_time,
                block.max_event_time,
                block.min_received_at,
                block.max_received_at,
            )
            for _, block in self._entries(log, first_id, last_id)
            if block.sha256
        ]

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        access = self._access(log)
        block = access.complete(lambda: access.first_since(time, first_id))
        return None if block is None else BlockRange(block.first_id, block.last_id, block.size)

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        access = self._access(log)
        return add_statistics(access.complete(lambda: access.sums(first_id)))

    def check(self, log: str) -> Sequence[str]:
        return self._access(log).check()

    def forget_blocks(self) -> None:
        for stored in list(self._logs.values()):
            stored.reader.forget()

    def own_objects(self, log: str) -> SealedSpace:
        """The location of the sealed objects of *log* that were not moved elsewhere."""
        return self._log(log).sealed

    def commits(self, log: str) -> int:
        """How many commits *log* has that are not freed, as far as is known."""
        stored = self._log(log)
        return stored.chain.end.number + 1 - stored.layouts.newest.start

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        self._check_writable()
        return self._log(log).reclaim(below, max_bytes)

    def get_state(self, log: str, key: str) -> VersionedValue:
        stored = self._log(log)
        if not key.startswith(_PRODUCER):
            return stored.states.get(key)
        stored.chain.refresh()
        return self._producer(stored, key)

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        self._check_writable()
        return self._log(log).states.put(key, value, version)

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        stored = self._log(log)
        names = stored.states.keys(prefix)
        found = dict(zip(names, self._pool.map(stored.states.get, names), strict=True))
        if _PRODUCER.startswith(prefix) or prefix.startswith(_PRODUCER):
            stored.chain.refresh()
            keys = (_PRODUCER + name for name in stored.chain.producers())
            found.update({key: self._producer(stored, key) for key in keys if key.startswith(prefix)})
        return {key[len(prefix) :]: found[key] for key in sorted(found) if found[key].version}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._bucket.close()

    def _producer(self, stored: ObjectLog, key: str) -> VersionedValue:
        """The sequence of a producer, which its commits state."""
        sent = stored.chain.producer(key.removeprefix(_PRODUCER))
        return VersionedValue() if sent is None else VersionedValue(sent.commits, b"%d" % sent.sequence)

    def _entries(self, log: str, first_id: int, last_id: int) -> Sequence[Located]:
        """The blocks that hold *first_id* to *last_id*; of a damaged commit one without a checksum."""
        access = self._access(log, last_id)
        return access.complete(lambda: list(access.entries(first_id, last_id)))

    def _access(self, log: str, last_id: int = 2**63) -> BlockAccess:
        """The blocks of *log*; what another process has added is looked for where *last_id* is not known yet."""
        stored = self._log(log)
        if stored.chain.end.last_id < last_id:
            stored.chain.refresh()
        return BlockAccess(stored)

    def _log(self, log: str) -> ObjectLog:
        stored = self._find(log)
        if stored is None:
            raise LogNotFoundError(
                f"there is no log {log!r} in {self.url}; `millstream log list --store {shlex.quote(self.url)}` "
                "lists its logs"
            )
        return stored

    def _find(self, log: str) -> ObjectLog | None:
        stored = self._logs.get(log)
        if stored is not None:
            return stored
        name = created_name(log)
        data = self._bucket.get(name)
        if data is None:
            return None
        with self._lock:
            stored = ObjectLog(self._bucket, self._clock, self._cache, self._pool, name=name, data=data)
            return self._logs.setdefault(log, stored)

    def _check_bucket(self) -> None:
        """Refuse a bucket that lets several create one object; that is tried out once a bucket."""
        if not self._is_checked:
            check_bucket(self._bucket)
            self._is_checked = True

    def _check_writable(self) -> None:
        if self._read_only:
            raise StorageReadOnlyError(f"{self.url} is open for reading only: open the store without read_only")
