"""Logs as segment files in a folder: a folder a log, nothing to install, one fdatasync a commit."""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.durable import may_write, sync_folder, write_durably
from millstream.core.private_files import make_private_folder
from millstream.log.backend import BlockStatistics, Commit, Head, StoredBlock, VersionedValue, producer_key
from millstream.log.backends.disk_reserve import DiskReserve, retry_with_reserve
from millstream.log.backends.durability import FileDurability, durability_option
from millstream.log.backends.segments.files import FileLock, translated
from millstream.log.backends.segments.format import SEGMENT_HEAD
from millstream.log.backends.segments.lease import LeaseFile, LeaseRecord, read_lease, write_lease
from millstream.log.backends.segments.states import StateJournal
from millstream.log.backends.segments.stream import SEGMENT_BYTES, SegmentStream
from millstream.log.errors import (
    DamagedLogError,
    FencedError,
    LogError,
    LogInputError,
    LogNotFoundError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
)
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.kinds import KIND, UNKNOWN
from millstream.log.spec import LogSpec
from millstream.log.watermarks import WATERMARKS, Watermarks, decode_watermarks, encode_watermarks

_VERSION = 2
MARKER = b'{"format":"millstream segments","version":%d}\n' % _VERSION
MARKER_1 = b'{"format":"millstream segments","version":1}\n'
"""In format 1 logs had no kind, and system logs the names of users' logs."""

_PRODUCER = producer_key("")

_RENEWAL_WAIT = 2.0
"""For how many seconds a renewal waits for a lock: the leases of other logs wait for it, and the next is due soon."""

_logger = logging.getLogger(__name__)


class _OpenLog:
    """One log's folder, opened. ``lock`` guards lease and segments; the journal has its own lock.

    ``term`` (microseconds) is how long the lease was last asked for: a commit renews it when less than half is left.
    """

    def __init__(
        self, folder: Path, name: str, clock: Clock, segment_bytes: int, *, read_only: bool, synced: bool
    ) -> None:
        self.lock = FileLock(folder / "lock", clock)
        self.lease = LeaseFile(folder / "lease")
        self.states = StateJournal(folder, clock)
        self.stream = SegmentStream(folder, name, segment_bytes=segment_bytes, read_only=read_only, synced=synced)
        self.term = 0

    def close(self) -> None:
        """Close the files once no thread writes to them; their numbers will be those of other files."""
        self.lock.close()
        self.close_written()

    def close_written(self) -> None:
        """Close the files of a writer; they are opened again when they are needed."""
        self.stream.close()
        self.lease.close()


class SegmentsBackend:
    """A backend in *folder*, on a local disk. Any number of processes may read a log while one writes it.

    With *create* the folder is made where it is absent; *read_only* never writes. A segment is sealed once it has
    *segment_bytes* bytes. With the *durability* ``os`` a commit is not synced: a power loss takes what was written
    since the writer last prolonged its lease or a state was written, or part of it. The next writer cuts off what is
    torn, and gives no id below the hot mark again.
    """

    one_host = True  # the locks of files hold among the processes of one machine

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        durability: FileDurability = "fsync",
    ) -> None:
        self.durability = durability
        self._folder = folder.absolute()
        self._clock = clock
        self._read_only = read_only or not may_write(self._folder)
        self._segment_bytes = segment_bytes
        self._opening = threading.Lock()
        self._logs: dict[str, _OpenLog] = {}
        self._closed = False
        self._reserve = DiskReserve(self._folder / "reserve")
        with translated(self._folder):
            self._open_store(create=create and not self._read_only)

    @property
    def url(self) -> str:
        return f"segments:///{self._folder}{durability_option(self.durability)}"

    def logs(self) -> Sequence[str]:
        self._check_open()
        with translated(self._folder):
            return sorted(path.parent.name for path in (self._folder / "logs").glob("*/lease"))

    def kinds(self) -> Mapping[str, str]:
        found = {}
        for log in self.logs():
            with contextlib.suppress(LogNotFoundError):  # it got another name meanwhile
                found[log] = self._kind(log)
        return found

    def _kind(self, log: str) -> str:
        try:
            return self.get_state(log, KIND).value.decode()
        except (DamagedLogError, StorageError):  # of its own files: the other logs need not be affected
            return UNKNOWN

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        folder = self._log_folder(log)
        if (folder / "lease").exists():
            return
        self._check_writable()
        with translated(folder), FileLock(self._folder / "store.json", self._clock).held():
            if not (folder / "lease").exists():
                _create_log(folder, log, first_id, kind)

    @retry_with_reserve
    def upgrade(self) -> None:
        marker = self._folder / "store.json"
        if not self._read_only and marker.read_bytes() == MARKER_1:
            with translated(self._folder):
                write_durably(marker, MARKER)

    @retry_with_reserve
    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        found, folder = self._writable(log), self._log_folder(log)
        with translated(self._folder), found.lock.held():
            lease = found.lease.read()
            if not self._change_lease(found, lease, epoch, holder=b"", until=0):
                return False
            folder.rename(self._log_folder(new))
            sync_folder(folder.parent)
        with self._opening:
            renamed = self._logs.pop(log)
        renamed.close()
        return True

    def head(self, log: str) -> Head:
        found = self._log(log)
        with translated(self._folder):
            lease, end = read_lease(found.lease.path), found.stream.end()
            value = found.states.get(WATERMARKS).value
        last_id, received_at = max(end.last_id, lease.last_id), end.received_at
        return Head(
            last_id=last_id, received_at=received_at, epoch=lease.epoch, holder=lease.holder, lease_until=lease.until
        ).with_watermarks(value)

    def lease_time(self) -> int:
        return int(self._clock.monotonic() * MICROSECONDS)

    @retry_with_reserve
    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        found = self._writable(log)
        with translated(self._folder), found.lock.held():
            lease = found.lease.read()
            if lease.epoch != epoch:
                return False
            found.term = until - self.lease_time()
            found.stream.recover(confirmed_id=lease.last_id)
            found.stream.settle(always=True)  # what the lease says is there must be there
            if self.durability == "os":
                self._skip_to_hot_mark(found, log)
            last_id = max(lease.last_id, found.stream.end().last_id)
            write_lease(found.lease.path, LeaseRecord(epoch + 1, holder, until, last_id))
        self._reserve.keep()  # comes last: a call that is repeated must not take back what was given up for it
        return True

    @retry_with_reserve
    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        """Renew it, or leave it to the commit that has the lock, and to the next ones, while half of it is left."""
        found = self._writable(log)
        found.term = until - self.lease_time()
        with translated(self._folder):
            known = read_lease(found.lease.path)
        has_half = known.epoch == epoch and bool(known.holder) and not self._is_half_over(known, found.term)
        try:
            with translated(self._folder), found.lock.held(0.0 if has_half else _RENEWAL_WAIT):
                lease = found.lease.read()
                return bool(lease.holder) and self._change_lease(found, lease, epoch, holder=lease.holder, until=until)
        except StorageBusyError:
            if has_half:
                return True
            raise

    def _is_half_over(self, lease: LeaseRecord, term: int) -> bool:
        return lease.until - self.lease_time() < term / 2

    @retry_with_reserve
    def release_lease(self, log: str, *, epoch: int) -> None:
        found = self._writable(log)
        with translated(self._folder), found.lock.held():
            self._change_lease(found, found.lease.read(), epoch, holder=b"", until=0)
            found.close_written()

    def commit(self, log: str, commit: Commit) -> None:
        found = self._writable(log)
        with translated(self._folder), found.lock.held():
            lease = found.lease.read()
            if lease.epoch != commit.epoch:
                raise FencedError(
                    f"another writer has taken over log {log!r}; the last data of this writer was not stored: "
                    "stop one of the two, and append the data again"
                )
            found.stream.commit(commit)
            if lease.holder and found.term and self._is_half_over(lease, found.term):
                self._renew_after_commit(found, lease)

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.read(first_id, last_id, max_bytes=max_bytes)

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.ranges(first_id, last_id)

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.index(first_id, last_id)

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.first_block_since(time, first_id)

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.statistics(first_id)

    def check(self, log: str) -> Sequence[str]:
        found = self._log(log)
        with translated(self._folder):
            return found.stream.check(decode_watermarks(found.states.get(WATERMARKS).value).hot_id)

    @retry_with_reserve
    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        """Free whole segments; the one that is being written stays."""
        found = self._writable(log)
        with translated(self._folder), found.lock.held():
            return found.stream.reclaim(below, max_bytes=max_bytes)

    def get_state(self, log: str, key: str) -> VersionedValue:
        found = self._log(log)
        with translated(self._folder):
            if key.startswith(_PRODUCER):
                return found.stream.producer(key.removeprefix(_PRODUCER))
            return found.states.get(key)

    @retry_with_reserve
    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        if key.startswith(_PRODUCER):
            raise LogInputError(f"the metadata key {key!r} is reserved for commits: use another key")
        found = self._writable(log)
        with translated(self._folder):
            found.stream.settle_announced()  # the ids that the value may name must be there
            return found.states.put(key, value, version=version)

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        found = self._log(log)
        with translated(self._folder):
            producers = {producer_key(name): state for name, state in found.stream.producers().items()}
            states = {**found.states.all(), **producers}
        return {key[len(prefix) :]: states[key] for key in sorted(states) if key.startswith(prefix)}

    def close(self) -> None:
        with self._opening:
            self._closed = True
            logs, self._logs = self._logs, {}
        for log in logs.values():
            log.close()

    def _open_store(self, *, create: bool) -> None:
        marker = self._folder / "store.json"
        if not marker.exists():
            if not create:
                raise LogNotFoundError(
                    f"no log store at {self._folder}: check the path, or create the store with "
                    f"`millstream log create NAME --store {shlex.quote(self.url)}`"
                )
            make_private_folder(self._folder)
            foreign = [path for path in self._folder.iterdir() if path.name != "logs" and path.name[0] != "."]
            if foreign and not marker.exists():  # another process may just have made it
                raise StorageError(f"{self._folder} contains files of another program: choose another folder")
            (self._folder / "logs").mkdir(exist_ok=True)
            write_durably(marker, MARKER)
            sync_folder(self._folder.parent)
        elif (found := marker.read_bytes()) not in (MARKER, MARKER_1):
            version = re.search(rb'"version":(\d{1,9})', found)
            if version is None or int(version[1]) <= _VERSION:
                raise StorageError(
                    f"{marker} is not a valid marker file of a log store: restore the file from a backup"
                )
            raise StorageError(
                f"{self._folder} is a log store of format {int(version[1])}, but this release reads "
                f"format {_VERSION}: upgrade Millstream"
            )

    def _skip_to_hot_mark(self, log: _OpenLog, name: str) -> None:
        """Let no id below the hot mark be given again.

        Earlier releases wrote the mark before the messages were synced, so that a power loss could take these.
        """
        hot_id = decode_watermarks(log.states.get(WATERMARKS).value).hot_id
        last_id = log.stream.end().last_id
        if hot_id <= last_id + 1:
            return
        _logger.warning(
            "log %r in %s ends at id %d, but messages up to id %d were trimmed or moved to a tier: with durability=os, "
            "a power loss may take messages that were not synced. The next message gets the id %d",
            name,
            self.url,
            last_id,
            hot_id - 1,
            hot_id,
        )
        log.stream.begin_at(hot_id)

    def _change_lease(self, log: _OpenLog, lease: LeaseRecord, epoch: int, *, holder: bytes, until: int) -> bool:
        if lease.epoch != epoch:
            return False
        log.stream.settle()  # what the lease says is there must be there
        last_id = max(lease.last_id, log.stream.end().last_id)
        write_lease(log.lease.path, msgspec.structs.replace(lease, holder=holder, until=until, last_id=last_id))
        return True

    def _renew_after_commit(self, log: _OpenLog, lease: LeaseRecord) -> None:
        """Make up for renewals: beside long commits that follow each other they never get the lock."""
        try:
            until = self.lease_time() + log.term
            self._change_lease(log, lease, lease.epoch, holder=lease.holder, until=until)
        except (OSError, LogError):  # the commit is stored, and the next renewal is due soon
            _logger.warning("cannot renew the lease %s after a commit", log.lease.path, exc_info=True)

    def _writable(self, log: str) -> _OpenLog:
        found = self._log(log)
        self._check_writable()
        return found

    def _log(self, log: str) -> _OpenLog:
        self._check_open()
        found = self._logs.get(log)
        return self._open(log) if found is None else found

    def _open(self, log: str) -> _OpenLog:
        folder = self._log_folder(log)
        if not (folder / "lease").exists():
            raise LogNotFoundError(
                f"there is no log {log!r} in {self.url}; "
                f"`millstream log list --store {shlex.quote(self.url)}` lists its logs"
            )
        with translated(folder):
            opened = self._opened(folder, log)  # without a lock: to open a log may take long, and others go on
        with self._opening:
            self._check_open()
            return self._logs.setdefault(log, opened)

    def _opened(self, folder: Path, log: str) -> _OpenLog:
        synced = self.durability == "fsync"
        return _OpenLog(folder, log, self._clock, self._segment_bytes, read_only=self._read_only, synced=synced)

    def _log_folder(self, log: str) -> Path:
        return self._folder / "logs" / LogSpec(log).name

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.url} is closed: open the store again")

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            raise StorageReadOnlyError(
                f"{self.url} is read-only: open the store for writing, and give this user the right to write to its "
                "folder"
            )


def _create_log(folder: Path, log: str, first_id: int, kind: str) -> None:
    """Make the folder of a log; its lease comes last, and with it the log is there."""
    former = list(folder.glob("*.seg"))  # of a process that was killed here
    if any(path.stat().st_size > 2 * SEGMENT_HEAD for path in former):
        raise DamagedLogError(f"{folder / 'lease'} is missing, but the log has messages. Restore it from a backup")
    for path in former:
        path.unlink()
    folder.mkdir(exist_ok=True)
    (folder / "lock").touch()
    states = {KIND: VersionedValue(1, kind.encode())}
    if first_id > 1:
        states[WATERMARKS] = VersionedValue(1, encode_watermarks(Watermarks(first_id, first_id)))
    StateJournal.create(folder, states)
    SegmentStream.create(folder, log, first_id)
    sync_folder(folder.parent)
    write_lease(folder / "lease", LeaseRecord(last_id=first_id - 1))
