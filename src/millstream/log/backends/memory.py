"""Logs in memory, for tests and for logs that may vanish with the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from millstream.core.clock import MICROSECONDS, Clock
from millstream.log.backend import BlockStatistics, Commit, Head, StoredBlock, VersionedValue, producer_key
from millstream.log.block_header import EncodedBlock
from millstream.log.errors import FencedError, LogNotFoundError
from millstream.log.ids import BlockRange, IndexEntry
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks


class _MemoryLog:
    def __init__(self, first_id: int, kind: str) -> None:
        self.head = Head(last_id=first_id - 1)
        self.first_ids: list[int] = []
        self.blocks: list[EncodedBlock] = []
        self.states = {KIND: VersionedValue(1, kind.encode())}
        if first_id > 1:
            self.states[WATERMARKS] = VersionedValue(1, encode_watermarks(Watermarks(first_id, first_id)))

    def since(self, first_id: int) -> list[EncodedBlock]:
        """The blocks that hold *first_id* and what comes after it."""
        return [block for block in self.blocks if block.header.last_id >= first_id]


class MemoryBackend:
    """A backend that lives as long as this object: closing a store over it loses nothing."""

    url = "memory://"
    durability = "memory"
    one_host = True
    _why_absent = "logs in memory exist only in the process that created them; use a store on a disk"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[str, _MemoryLog] = {}

    def logs(self) -> Sequence[str]:
        with self._lock:
            return sorted(self._logs)

    def kinds(self) -> Mapping[str, str]:
        with self._lock:
            return {
                name: self._logs[name].states.get(KIND, VersionedValue()).value.decode() for name in sorted(self._logs)
            }

    def create(self, log: str, *, first_id: int = 1, kind: str = "application") -> None:
        with self._lock:
            self._logs.setdefault(log, _MemoryLog(first_id, kind))

    def upgrade(self) -> None:
        pass

    def rename(self, log: str, new: str, *, epoch: int) -> bool:
        with self._lock:
            if self._logs[log].head.epoch != epoch:
                return False
            stored = self._logs[new] = self._logs.pop(log)
            stored.head = msgspec.structs.replace(stored.head, holder=b"", lease_until=0)
            return True

    def head(self, log: str) -> Head:
        stored = self._log(log)
        return stored.head.with_watermarks(stored.states.get(WATERMARKS, VersionedValue()).value)

    def lease_time(self) -> int:
        return int(self._clock.monotonic() * MICROSECONDS)

    def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
        return self._change_head(log, epoch, epoch=epoch + 1, holder=holder, lease_until=until)

    def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
        return bool(self.head(log).holder) and self._change_head(log, epoch, lease_until=until)

    def release_lease(self, log: str, *, epoch: int) -> None:
        self._change_head(log, epoch, holder=b"", lease_until=0)

    def commit(self, log: str, commit: Commit) -> None:
        stored = self._log(log)
        with self._lock:
            if (stored.head.epoch, stored.head.last_id) != (commit.epoch, commit.previous_id):
                raise FencedError(
                    f"another writer has taken over log {log!r}; the last data of this writer was not stored: "
                    "stop one of the two, and append the data again"
                )
            stored.first_ids += [block.header.first_id for block in commit.blocks]
            stored.blocks += commit.blocks
            if commit.sequence is not None:
                key = producer_key(commit.producer)
                version = stored.states.get(key, VersionedValue()).version + 1
                stored.states[key] = VersionedValue(version, str(commit.sequence).encode())
            stored.head = msgspec.structs.replace(stored.head, last_id=commit.last_id, received_at=commit.received_at)

    def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Sequence[StoredBlock]:
        found: list[StoredBlock] = []
        size = 0
        for block in self._blocks(log, first_id, last_id):
            size += len(block.data)
            if found and size > max_bytes:
                break
            found.append(StoredBlock(block.header.first_id, block.header.last_id, block.data))
        return found

    def ranges(self, log: str, first_id: int, last_id: int) -> Sequence[BlockRange]:
        return [
            BlockRange(block.header.first_id, block.header.last_id, len(block.data))
            for block in self._blocks(log, first_id, last_id)
        ]

    def index(self, log: str, first_id: int, last_id: int) -> Sequence[IndexEntry]:  # noqa: ARG002
        self._log(log)
        return ()

    def first_block_since(self, log: str, time: int, first_id: int = 1) -> BlockRange | None:
        heads = ((block.header, len(block.data)) for block in self._log(log).since(first_id))
        found = (BlockRange(head.first_id, head.last_id, size) for head, size in heads if head.max_received_at >= time)
        return next(found, None)

    def statistics(self, log: str, first_id: int = 1) -> BlockStatistics:
        blocks = self._log(log).since(first_id)
        if not blocks:
            return BlockStatistics()
        heads = [block.header for block in blocks]
        return BlockStatistics(
            first_id=heads[0].first_id,
            last_id=heads[-1].last_id,
            count=sum(head.count for head in heads),
            blocks=len(blocks),
            bytes=sum(len(block.data) for block in blocks),
            min_event_time=min(head.min_event_time for head in heads),
            max_event_time=max(head.max_event_time for head in heads),
            min_received_at=min(head.min_received_at for head in heads),
            max_received_at=max(head.max_received_at for head in heads),
        )

    def check(self, log: str) -> Sequence[str]:
        self._log(log)
        return ()

    def reclaim(self, log: str, below: int, *, max_bytes: int) -> int:
        stored = self._log(log)
        with self._lock:
            count = freed = 0
            for block in stored.blocks:
                if block.header.last_id >= below or (count and freed + len(block.data) > max_bytes):
                    break
                count, freed = count + 1, freed + len(block.data)
            stored.first_ids, stored.blocks = stored.first_ids[count:], stored.blocks[count:]
        return freed

    def get_state(self, log: str, key: str) -> VersionedValue:
        return self._log(log).states.get(key, VersionedValue())

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        states = self._log(log).states
        with self._lock:
            if states.get(key, VersionedValue()).version != version:
                return False
            states[key] = VersionedValue(version + 1, value)
            return True

    def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
        states = self._log(log).states
        with self._lock:
            return {key[len(prefix) :]: states[key] for key in sorted(states) if key.startswith(prefix)}

    def close(self) -> None:
        pass

    def _log(self, log: str) -> _MemoryLog:
        try:
            return self._logs[log]
        except KeyError as error:
            raise LogNotFoundError(f"there is no log {log!r} in {self.url}: {self._why_absent}") from error

    def _change_head(self, log: str, expected_epoch: int, **changes: object) -> bool:
        stored = self._log(log)
        with self._lock:
            if stored.head.epoch != expected_epoch:
                return False
            stored.head = msgspec.structs.replace(stored.head, **changes)
            return True

    def _blocks(self, log: str, first_id: int, last_id: int) -> list[EncodedBlock]:
        stored = self._log(log)
        with self._lock:
            start = max(bisect_right(stored.first_ids, first_id) - 1, 0)
            stop = bisect_right(stored.first_ids, last_id)
            return [block for block in stored.blocks[start:stop] if block.header.last_id >= first_id]


class AbsentBackend(MemoryBackend):
    """The store of logs at *url*, which does not exist yet, for those who only read: it has no logs."""

    _why_absent = "no log was created there yet; check --data, or create the log with `millstream log create NAME`"

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(clock)
        self.url = url
