"""The whole log against a list: append, crash, reopen, read, acknowledge, retry, seek, trim, retain, tier, copy."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millstream.core.clock import VirtualClock
from millstream.core.message import Message, to_arrow
from millstream.log import (
    FencedError,
    Gap,
    IdRange,
    LogSpec,
    LogStore,
    Retention,
    RetentionEnforcer,
    StorageUnavailableError,
    Tiering,
    WriterBusyError,
    copy_log,
)
from millstream.log.backend import Backend
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.mysql import MysqlBackend, parse_address
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.probe import RECORD
from millstream.log.backends.postgres import PostgresBackend
from millstream.log.backends.postgres import parse_address as parse_postgres_place
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.stores import MemoryStore, Store
from millstream.stores.s3 import parse_address as parse_bucket
from millstream.stores.s3.log_bucket import S3LogBucket
from millstream.stores.tiers import TierSpace
from millstream.stores.wrapper import StoreCall
from millstream.testing.faulty_store import UnavailableStore
from millstream.testing.object_bucket import MemoryBucket
from millstream.testing.s3 import S3Server
from suite.sizes import SIZE
from suite.sizes import machine as steps_of

SPEC = LogSpec("weather", block_bytes=400, block_messages=16)
LEASE = 10.0

messages = st.builds(
    Message,
    body=st.binary(max_size=60),
    key=st.sampled_from(["", "temp", "wind"]),
    source=st.sampled_from(["", "JFK"]),
    event_time=st.integers(0, 100),
    received_at=st.integers(0, 100),
)
runs = st.lists(messages, min_size=1, max_size=40)


class LogMachine(RuleBasedStateMachine):
    """Every rule does to the log what the model does to a list and a set."""

    lease = LEASE

    def backend(self) -> Backend:
        raise LookupError("each backend has its own machine")

    @initialize()
    def begin(self) -> None:
        self.clock = VirtualClock()
        self.model: list[Message] = []
        self.low = 1  # the low-water mark
        self.sequence = 0
        self.acked: set[int] = set()
        self.stores: list[LogStore] = []
        self.objects: Store = MemoryStore("tier")
        self.failing_call = 0  # of those that the object store gets next; 0: none fails
        self.open()

    def open(self) -> None:
        store = LogStore(self.backend(), self.clock, lease_seconds=self.lease, open_objects=self.open_objects)
        self.stores.append(store)
        self.log = self.stores[-1].log(SPEC)
        self.writer = self.log.writer("importer")
        self.reader = self.log.reader("worker")
        assert self.writer.sequence == self.sequence
        assert self.writer.last_id == len(self.model)

    def open_objects(self, url: str) -> TierSpace:
        assert url == self.objects.url
        return TierSpace(UnavailableStore(self.objects, when=self.is_due))

    def is_due(self, _: StoreCall) -> bool:
        self.failing_call = max(self.failing_call - 1, 0)
        return self.failing_call == 1

    @rule(found=runs)
    def append_messages(self, found: list[Message]) -> None:
        self.added(found, self.writer.append(found))

    @rule(found=runs)
    def append_arrow(self, found: list[Message]) -> None:
        self.added(found, self.writer.append(to_arrow(found)))

    @rule(found=runs, more=runs)
    def append_without_waiting(self, found: list[Message], more: list[Message]) -> None:
        first, second = self.writer.append_nowait(found), self.writer.append_nowait(more)
        assert second is not None
        self.writer.durable(second.last)
        self.added(found, first)
        self.added(more, second)

    @rule(found=runs)
    def append_with_a_sequence_and_retry(self, found: list[Message]) -> None:
        self.sequence += 1
        self.added(found, self.writer.append(found, sequence=self.sequence))
        assert self.writer.append(found, sequence=self.sequence) is None
        assert self.writer.sequence == self.sequence

    @rule()
    def reopen(self) -> None:
        self.reader.close()
        self.writer.close()
        self.stores.pop().close()
        self.open()

    @rule()
    def crash_of_a_writer_that_goes_on_keeping_its_lease(self) -> None:
        """The store is dropped without being closed; its acknowledgements of the last moment may be lost."""
        stale = self.writer
        self.reader.flush()
        other = LogStore(self.backend(), self.clock, lease_seconds=self.lease)
        with other, pytest.raises(WriterBusyError):
            other.log(SPEC).writer()
        self.backend_of(stale).release_lease(SPEC.name, epoch=self.epoch())
        self.open()
        with pytest.raises(FencedError):
            stale.append([b"too late"])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_a_part(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, len(self.model)))
        last = data.draw(st.integers(first, len(self.model) + 5))
        store = data.draw(st.sampled_from(self.stores))  # one that has not looked for long, too
        batches = list(store.log(SPEC).read(first, last))
        found = [message for batch in batches for message in batch]
        assert found == self.model[max(first, self.low) - 1 : last]
        gaps = [(batch.first_id, batch.last_id) for batch in batches if isinstance(batch, Gap)]
        assert gaps == ([(first, min(last, self.low - 1))] if first < self.low else [])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), form=st.sampled_from(["one", "list", "range"]))
    def acknowledge(self, data: st.DataObject, form: str) -> None:
        number = st.integers(1, len(self.model))
        if form == "range":
            first, last = sorted((data.draw(number), data.draw(number)))
            self.reader.ack(IdRange(first, last))
            self.acked.update(range(first, last + 1))
        else:
            many = data.draw(st.lists(number, min_size=1, max_size=5 if form == "list" else 1))
            self.reader.ack(many if form == "list" else many[0])
            self.acked.update(many)

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        first_id = data.draw(st.integers(self.low, len(self.model) + 1))
        self.reader.seek(first_id)
        self.acked = set(range(1, first_id))

    @rule(size=st.integers(1, 50))
    def a_new_reader_sees_exactly_what_is_not_acknowledged(self, size: int) -> None:
        self.reader.close()
        self.reader = self.log.reader("worker")
        batches = list(self.reader.batches(size))
        assert all(len(batch) <= size for batch in batches)
        lost = [n for n in range(1, self.low) if n not in self.acked]
        gaps = [(batch.first_id, batch.last_id) for batch in batches if isinstance(batch, Gap)]
        assert gaps == ([(lost[0], lost[-1])] if lost else [])
        self.acked.update(lost)
        found = [message for batch in batches for message in batch]
        assert found == [m for m in self.model if m.id not in self.acked]

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        first_id = data.draw(st.integers(1, len(self.model) + 1))
        self.log.trim(first_id)
        self.low = max(self.low, first_id)

    @rule(count=st.integers(0, 80), keep=st.booleans())
    def retain(self, count: int, keep: bool) -> None:
        self.reader.flush()
        wanted = max(len(self.model) - count + 1, self.low)
        first_id = max(min(wanted, self.reader.pointer + 1), self.low) if keep else wanted
        plan = RetentionEnforcer(self.log, self.clock, Retention(max_count=count, keep_consumers=keep)).run_once()
        assert plan.first_id == (first_id if first_id > self.low else None)
        self.low = first_id

    @rule(size=st.sampled_from([1, 700, 2500]), keep=st.sampled_from([0, 0, 1200]), partial=st.booleans())
    def move_blocks(self, size: int, keep: int, partial: bool) -> None:
        self.log.set_tiering(Tiering(self.objects.url, segment_bytes=size, keep_bytes=keep))
        moved = self.log.move_blocks(partial=partial)
        info = self.log.info()
        if partial and not keep:
            assert info.tier is None or info.tier.last_id == len(self.model)
        assert moved.objects == 0 or (info.tier is not None and info.tier.objects >= 1)
        assert self.log.verify(deep=True).ok

    @rule(number=st.integers(1, 12))
    def a_run_that_moves_blocks_dies(self, number: int) -> None:
        """The object store goes away at one of its calls; what was begun is finished by whoever moves blocks next."""
        self.log.set_tiering(Tiering(self.objects.url, segment_bytes=500))
        self.failing_call = number + 1
        with contextlib.suppress(StorageUnavailableError):
            self.log.move_blocks(partial=True)
        self.failing_call = 0

    @rule()
    def a_copy_holds_the_same(self) -> None:
        with LogStore(MemoryBackend(self.clock), self.clock) as store:
            copy = store.log(SPEC, first_id=self.log.first_id)
            assert copy_log(self.log, copy).messages == len(self.model) - self.low + 1
            assert [message for batch in copy.read() for message in batch] == self.model[self.low - 1 :]

    @invariant()
    def the_log_is_whole(self) -> None:
        if not self.stores:
            return
        info = self.log.info()
        count = len(self.model) - self.low + 1
        assert (info.first_id, info.count, info.last_id) == (self.low, count, len(self.model))
        assert self.log.verify().ok
        assert self.stores[0].log(SPEC).verify().ok
        pointer = next(n for n in range(len(self.model) + 1) if n + 1 not in self.acked)
        assert self.reader.pointer == pointer

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    def added(self, found: list[Message], ids: IdRange | None) -> None:
        first = len(self.model) + 1
        assert ids == IdRange(first, first + len(found) - 1)
        self.model += [
            Message(m.body, m.key, m.source, m.event_time, m.received_at, (), first + n) for n, m in enumerate(found)
        ]

    def backend_of(self, writer: object) -> Backend:
        return writer._committer._backend  # type: ignore[attr-defined,no-any-return]

    def epoch(self) -> int:
        return self.backend_of(self.writer).head(SPEC.name).epoch


class MemoryLogMachine(LogMachine):
    def backend(self) -> Backend:
        if not hasattr(self, "memory"):
            self.memory = MemoryBackend(self.clock)
        return self.memory


class SqliteLogMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-log-machine-"))

    def backend(self) -> Backend:
        return SqliteBackend(self.folder / "log.db", self.clock)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class SegmentsLogMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-log-machine-"))

    def backend(self) -> Backend:
        return SegmentsBackend(self.folder, self.clock, segment_bytes=1500)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class MysqlLogMachine(LogMachine):
    lease = 600.0  # on the server's clock, which does not stand still while an example runs

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def backend(self) -> Backend:
        return MysqlBackend(parse_address(self.url), self.clock)


@pytest.mark.smoke
def test_the_log_in_mysql_is_like_a_list(database: str, empty_database: Callable[[str], None]) -> None:
    def machine() -> LogMachine:
        empty_database(database)
        return MysqlLogMachine(database)

    run_state_machine_as_test(machine, settings=steps_of(ci=10, long=100, steps=15))


class PostgresLogMachine(MysqlLogMachine):
    def backend(self) -> Backend:
        return PostgresBackend(parse_postgres_place(self.url), self.clock)


@pytest.mark.smoke
def test_the_log_in_postgresql_is_like_a_list(postgres_database: str, empty_database: Callable[[str], None]) -> None:
    def machine() -> LogMachine:
        empty_database(postgres_database)
        return PostgresLogMachine(postgres_database)

    run_state_machine_as_test(machine, settings=steps_of(ci=10, long=100, steps=15))


class ObjectsLogMachine(LogMachine):
    """In a bucket in memory, in which every store finds the same objects."""

    def __init__(self, new_bucket: Callable[[], Bucket] = MemoryBucket) -> None:
        super().__init__()
        self.bucket: Bucket = new_bucket()
        self.bucket.put(RECORD, b"{}")

    def backend(self) -> Backend:
        return ObjectsBackend(self.bucket, self.clock)


class ServedObjectsLogMachine(ObjectsLogMachine):
    """In a bucket on a server. The log is verified in the end only: each time that takes some hundred requests."""

    lease = 600.0  # on the server's clock

    def the_log_is_whole(self) -> None:
        assert self.writer.last_id == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            super().the_log_is_whole()
        super().teardown()


@pytest.mark.long
def test_the_log_in_a_bucket_of_moto_is_like_a_list(moto: S3Server) -> None:
    run_in_buckets(moto)


@pytest.mark.long
@pytest.mark.skipif(SIZE != "long", reason="long size only: 90 seconds; moto's machine runs at each size")
def test_the_log_in_a_bucket_of_swift_is_like_a_list(swift: S3Server) -> None:
    run_in_buckets(swift)


@pytest.mark.long
def test_the_log_in_a_bucket_of_the_versity_gateway_is_like_a_list(versitygw: S3Server) -> None:
    run_in_buckets(versitygw)


def run_in_buckets(server: S3Server) -> None:
    def new_bucket() -> Bucket:
        return S3LogBucket(parse_bucket(server.new_url()), client=server.client)

    run_state_machine_as_test(lambda: ServedObjectsLogMachine(new_bucket), settings=steps_of(ci=10, long=100, steps=15))


TestMemoryLogMachine = MemoryLogMachine.TestCase
TestObjectsLogMachine = ObjectsLogMachine.TestCase
TestObjectsLogMachine.settings = steps_of(ci=20, long=400, steps=25)
TestMemoryLogMachine.settings = steps_of(ci=20, long=400, steps=25)
TestSqliteLogMachine = SqliteLogMachine.TestCase
TestSqliteLogMachine.settings = steps_of(ci=10, long=200, steps=20)
TestSegmentsLogMachine = SegmentsLogMachine.TestCase
TestSegmentsLogMachine.settings = steps_of(ci=10, long=200, steps=20)
