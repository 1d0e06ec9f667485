"""Conformance suites of the log: what every backend, and every log store over it, must do.

Inherit a class in a test module and give it the fixture it asks for::

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def open_backend(self, tmp_path):
            return lambda: MyBackend(tmp_path)      # each call opens the same data again

    class TestMyLogStore(LogStoreConformance):
        @pytest.fixture
        def open_logs(self, tmp_path):
            clock = VirtualClock()
            return lambda: LogStore(MyBackend(tmp_path), clock)
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from millstream.core.message import MESSAGE_SCHEMA, Message, to_arrow
from millstream.log import (
    BlockRange,
    FencedError,
    Gap,
    IdRange,
    Log,
    LogError,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    TrimmedError,
    Writer,
    WriterBusyError,
)
from millstream.log.backend import Backend, Commit, State, Statistics, producer_key
from millstream.log.block import EncodedBlock, Origin, encode_block
from millstream.log.columns import from_messages
from millstream.log.marks import MARKS, Marks, encode_marks

NAME = "weather"


def block(first_id: int, bodies: Sequence[bytes], *, time: int = 1_000, epoch: int = 1) -> EncodedBlock:
    """A block of *bodies* from *first_id* on, received at *time* (microseconds)."""
    columns = from_messages([Message(body) for body in bodies]).stamped(time)
    return encode_block(columns, first_id, Origin(NAME, epoch))


class BackendConformance:
    """What a :class:`~millstream.log.backend.Backend` must do. Needs the fixture ``open_backend``."""

    @pytest.fixture
    def open_backend(self) -> Callable[[], Backend]:
        """A function that opens the same data each time it is called."""
        raise LookupError("a conformance test needs the fixture open_backend")

    @pytest.fixture
    def backend(self, open_backend: Callable[[], Backend]) -> Backend:
        """A backend with one empty log, and its first writer's lease taken."""
        backend = open_backend()
        backend.create(NAME)
        assert backend.take_lease(NAME, epoch=0, holder=b"first", until=10)
        return backend

    def test_a_new_log_is_empty_and_has_no_writer(self, open_backend: Callable[[], Backend]) -> None:
        backend = open_backend()
        backend.create("another")
        head = backend.head("another")
        assert (head.last_id, head.epoch, head.holder) == (0, 0, b"")
        assert backend.statistics("another") == Statistics()
        assert list(backend.read("another", 1, 100, max_bytes=100)) == []

    def test_logs_are_listed_by_name_and_created_once(self, backend: Backend) -> None:
        backend.create("a")
        backend.commit(NAME, Commit(1, 0, 1, 5, [block(1, [b"x"])]))
        backend.create(NAME)
        assert list(backend.logs()) == ["a", NAME]
        assert backend.head(NAME).last_id == 1

    def test_an_unknown_log_is_not_found_by_any_call(self, backend: Backend) -> None:
        for call in (
            lambda: backend.head("none"),
            lambda: backend.statistics("none"),
            lambda: backend.get_state("none", "key"),
            lambda: backend.put_state("none", "key", b"", version=0),
            lambda: backend.read("none", 1, 2, max_bytes=1),
            lambda: backend.ranges("none", 1, 2),
            lambda: backend.take_lease("none", epoch=0, holder=b"x", until=1),
            lambda: backend.commit("none", Commit(1, 0, 1, 5, [])),
            lambda: backend.reclaim("none", 1, max_bytes=1),
        ):
            with pytest.raises(LogNotFoundError):
                call()

    def test_a_commit_stores_blocks_pointer_and_sequence_together(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        blocks = [block(1, [b"a", b"b"]), block(3, [b"c"])]
        backend.commit(NAME, Commit(1, 0, 3, 77, blocks, "importer", 5))
        again = open_backend()
        assert [found.data for found in again.read(NAME, 1, 3, max_bytes=1 << 20)] == [b.data for b in blocks]
        assert (again.head(NAME).last_id, again.head(NAME).received_at) == (3, 77)
        assert again.get_state(NAME, producer_key("importer")).value == b"5"

    def test_a_commit_of_another_epoch_or_pointer_changes_nothing(self, backend: Backend) -> None:
        backend.commit(NAME, Commit(1, 0, 1, 5, [block(1, [b"a"])]))
        for stale in (Commit(2, 1, 2, 6, [block(2, [b"x"])], "p", 1), Commit(1, 0, 1, 6, [block(1, [b"x"])], "p", 1)):
            with pytest.raises(FencedError):
                backend.commit(NAME, stale)
        assert backend.head(NAME).last_id == 1
        assert backend.statistics(NAME).count == 1
        assert backend.get_state(NAME, producer_key("p")) == State()

    def test_reading_begins_with_the_block_that_holds_the_id(self, backend: Backend) -> None:
        backend.commit(NAME, Commit(1, 0, 9, 5, [block(first, [b"a", b"b", b"c"]) for first in (1, 4, 7)]))
        found = backend.read(NAME, 5, 7, max_bytes=1 << 20)
        assert [(b.first_id, b.last_id) for b in found] == [(4, 6), (7, 9)]
        assert [(b.first_id, b.last_id) for b in backend.ranges(NAME, 5, 7)] == [(4, 6), (7, 9)]
        assert list(backend.read(NAME, 10, 20, max_bytes=1 << 20)) == []

    def test_reading_returns_one_block_at_least_and_no_more_bytes_than_asked_for(self, backend: Backend) -> None:
        backend.commit(NAME, Commit(1, 0, 9, 5, [block(first, [b"a", b"b", b"c"]) for first in (1, 4, 7)]))
        size = len(block(1, [b"a", b"b", b"c"]).data)
        assert len(backend.read(NAME, 1, 9, max_bytes=1)) == 1
        assert len(backend.read(NAME, 1, 9, max_bytes=2 * size)) == 2

    def test_statistics_add_up_the_blocks(self, backend: Backend) -> None:
        blocks = [block(1, [b"a", b"b"], time=9), block(3, [b"c"], time=4)]
        backend.commit(NAME, Commit(1, 0, 3, 5, blocks))
        size = sum(len(b.data) for b in blocks)
        assert backend.statistics(NAME) == Statistics(1, 3, 3, 2, size, 4, 9, 4, 9)

    def test_the_first_block_since_a_time_is_found_by_its_receive_times(self, backend: Backend) -> None:
        for first, time in ((1, 100), (3, 300), (5, 200), (7, 400)):
            made = block(first, [b"a", b"b"], time=time)
            backend.commit(NAME, Commit(1, first - 1, first + 1, 5, [made]))
        size = len(block(1, [b"a", b"b"]).data)
        for time, first in ((0, 1), (100, 1), (101, 3), (300, 3), (301, 7)):
            assert backend.first_block_since(NAME, time) == BlockRange(first, first + 1, size)
        assert backend.first_block_since(NAME, 401) is None

    def test_a_lease_is_taken_once_per_epoch(self, backend: Backend) -> None:
        assert backend.take_lease(NAME, epoch=1, holder=b"second", until=20)
        assert not backend.take_lease(NAME, epoch=1, holder=b"third", until=30)
        head = backend.head(NAME)
        assert (head.epoch, head.holder, head.lease_until) == (2, b"second", 20)

    def test_only_the_holder_renews_and_releases(self, backend: Backend) -> None:
        assert backend.renew_lease(NAME, epoch=1, until=50)
        backend.take_lease(NAME, epoch=1, holder=b"second", until=60)
        assert not backend.renew_lease(NAME, epoch=1, until=99)
        backend.release_lease(NAME, epoch=1)
        assert backend.head(NAME).holder == b"second"
        backend.release_lease(NAME, epoch=2)
        assert (backend.head(NAME).holder, backend.head(NAME).epoch) == (b"", 2)
        assert not backend.renew_lease(NAME, epoch=2, until=99)

    def test_a_state_is_written_only_over_the_version_that_was_read(self, backend: Backend) -> None:
        assert backend.get_state(NAME, "k") == State(0, b"")
        assert backend.put_state(NAME, "k", b"one", version=0)
        assert not backend.put_state(NAME, "k", b"two", version=0)
        assert backend.put_state(NAME, "k", b"two", version=1)
        assert backend.get_state(NAME, "k") == State(2, b"two")

    def test_states_are_found_by_prefix_within_their_log(self, backend: Backend) -> None:
        backend.create("other")
        for key in ("a/1", "a/2", "b/1"):
            backend.put_state(NAME, key, key.encode(), version=0)
        backend.put_state("other", "a/3", b"", version=0)
        assert {key: state.value for key, state in backend.states(NAME, "a/").items()} == {"1": b"a/1", "2": b"a/2"}

    def test_a_new_log_has_its_marks_at_its_first_id(self, backend: Backend) -> None:
        assert (backend.head(NAME).first_id, backend.head(NAME).hot_id) == (1, 1)
        assert backend.get_state(NAME, MARKS) == State()

    def test_the_head_tells_the_marks(self, backend: Backend, open_backend: Callable[[], Backend]) -> None:
        assert backend.put_state(NAME, MARKS, encode_marks(Marks(3, 7)), version=0)
        for each in (backend, open_backend()):
            assert (each.head(NAME).first_id, each.head(NAME).hot_id) == (3, 7)

    def test_a_log_may_begin_at_a_later_id(self, backend: Backend, open_backend: Callable[[], Backend]) -> None:
        backend.create("later", first_id=1000)
        backend.create("later", first_id=2000)
        for each in (backend, open_backend()):
            head = each.head("later")
            assert (head.last_id, head.first_id, head.hot_id, head.epoch) == (999, 1000, 1000, 0)
        assert backend.statistics("later") == Statistics()
        assert backend.take_lease("later", epoch=0, holder=b"first", until=10)
        made = [encode_block(from_messages([Message(b"a")]).stamped(1), 1000, Origin("later", 1))]
        backend.commit("later", Commit(1, 999, 1000, 5, made))
        assert [(b.first_id, b.last_id) for b in open_backend().read("later", 1, 2000, max_bytes=1)] == [(1000, 1000)]
        assert list(backend.check("later")) == []

    def test_figures_are_those_of_the_blocks_from_an_id_on(self, backend: Backend) -> None:
        for first, time in ((1, 400), (4, 200), (7, 300)):
            backend.commit(NAME, Commit(1, first - 1, first + 2, 5, [block(first, [b"a", b"b", b"c"], time=time)]))
        size = len(block(1, [b"a", b"b", b"c"]).data)
        for first in (4, 5, 6):
            assert backend.statistics(NAME, first) == Statistics(4, 9, 6, 2, 2 * size, 200, 300, 200, 300)
            assert backend.first_block_since(NAME, 100, first) == BlockRange(4, 6, size)
            assert backend.first_block_since(NAME, 300, first) == BlockRange(7, 9, size)
            assert backend.first_block_since(NAME, 400, first) is None
        assert backend.statistics(NAME, 10) == Statistics()

    def test_old_blocks_are_freed_a_share_at_a_time_and_never_one_that_is_kept(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        """How much goes at once is up to the backend; what is asked for, order and rest are not."""
        for first in range(1, 181, 3):
            backend.commit(NAME, Commit(1, first - 1, first + 2, 5, [block(first, [b"a" * 200, b"b", b"c"])]))
        size = len(block(1, [b"a" * 200, b"b", b"c"]).data)
        assert backend.reclaim(NAME, 3, max_bytes=1 << 20) == 0
        assert backend.put_state(NAME, MARKS, encode_marks(Marks(152, 152)), version=0)
        freed = [backend.reclaim(NAME, 152, max_bytes=4 * size)]
        kept = list(backend.ranges(NAME, 1, 180))
        assert 1 < kept[0].first_id <= 151
        while freed[-1]:
            freed.append(backend.reclaim(NAME, 152, max_bytes=4 * size))
        assert len(freed) > 2
        for each in (backend, open_backend()):
            kept = list(each.ranges(NAME, 1, 180))
            assert kept[0].first_id <= 151
            assert [b.first_id for b in kept] == list(range(kept[0].first_id, 181, 3))
            assert each.head(NAME).last_id == 180
            found = each.read(NAME, 151, 180, max_bytes=1 << 20)
            assert [b.data for b in found] == [block(n, [b"a" * 200, b"b", b"c"]).data for n in range(151, 181, 3)]
            assert each.statistics(NAME, 152).count == 30
            assert list(each.check(NAME)) == []

    def test_a_log_whose_blocks_were_all_freed_goes_on(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        backend.commit(NAME, Commit(1, 0, 2, 77, [block(1, [b"a", b"b"])], "p", 4))
        assert backend.put_state(NAME, MARKS, encode_marks(Marks(3, 3)), version=0)
        while backend.reclaim(NAME, 3, max_bytes=1 << 20):
            pass
        backend = open_backend()
        assert backend.statistics(NAME, 3) == Statistics()
        assert (backend.head(NAME).last_id, backend.head(NAME).hot_id) == (2, 3)
        backend.commit(NAME, Commit(1, 2, 3, 78, [block(3, [b"c"])], "p", 5))
        assert [b.first_id for b in backend.read(NAME, 3, 3, max_bytes=1)] == [3]
        assert backend.get_state(NAME, producer_key("p")).value == b"5"

    def test_lease_time_does_not_go_back(self, backend: Backend) -> None:
        times = [backend.lease_time() for _ in range(10)]
        assert times == sorted(times)


class LogStoreConformance:
    """What a log store over any backend must do. Needs the fixture ``open_logs``."""

    @pytest.fixture
    def open_logs(self) -> Callable[[], LogStore]:
        """A function that opens the same store each time it is called."""
        raise LookupError("a conformance test needs the fixture open_logs")

    @pytest.fixture
    def log(self, open_logs: Callable[[], LogStore]) -> Log:
        """An empty log."""
        return open_logs().log(LogSpec(NAME))

    def test_p1_order_ids_are_dense_and_read_back_in_order(self, log: Log) -> None:
        with log.writer() as writer:
            ranges = [writer.append([b"%d" % n for n in range(start, start + 7)]) for start in range(0, 70, 7)]
        assert ranges == [IdRange(first, first + 6) for first in range(1, 71, 7)]
        messages = [message for batch in log.read() for message in batch]
        assert [message.id for message in messages] == list(range(1, 71))
        assert [message.body for message in messages] == [b"%d" % n for n in range(70)]

    def test_p1_order_threads_that_append_at_once_keep_their_messages_together(self, log: Log) -> None:
        def send(number: int) -> None:
            for turn in range(20):
                ids = writer.append([b"%d %d %d" % (number, turn, n) for n in range(5)])
                assert ids is not None
                given.append((ids.first, number, turn))

        given: list[tuple[int, int, int]] = []
        with log.writer() as writer:
            threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        bodies = [message.body for batch in log.read() for message in batch]
        expected = [b"%d %d %d" % (number, turn, n) for _, number, turn in sorted(given) for n in range(5)]
        assert bodies == expected

    def test_every_form_of_message_comes_back_as_it_was(self, log: Log) -> None:
        full = Message(b"\x00\xff", "kéy", "JFK", 5, 6, (("a", b"1"), ("a", b"")))
        with log.writer() as writer:
            writer.append([full])
            writer.append(to_arrow([full, full]))
            writer.append([b""])
            writer.append(pa.RecordBatch.from_pydict({"body": [b"only"]}))
        first, second, third, empty, only = [message for batch in log.read() for message in batch]
        assert first == Message(full.body, full.key, full.source, 5, 6, full.headers, 1)
        assert (second.headers, third.id) == (full.headers, 3)
        assert (empty.body, empty.key, empty.headers) == (b"", "", ())
        assert (only.body, only.event_time) == (b"only", only.received_at)

    def test_arrow_batches_have_the_message_schema_or_the_columns_asked_for(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([Message(b"a", "k"), Message(b"b", "l")])
        (batch,) = log.read()
        assert batch.arrow.schema == MESSAGE_SCHEMA
        (pruned,) = log.read(columns=["id", "key"])
        assert pruned.arrow.to_pydict() == {"id": [1, 2], "key": ["k", "l"]}
        assert [message.body for message in pruned] == [b"a", b"b"]

    def test_what_is_not_set_is_set_by_the_log(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([Message(b"now"), Message(b"then", event_time=7), Message(b"old", received_at=8)])
        now, then, old = [message for batch in log.read() for message in batch]
        assert now.event_time == now.received_at == then.received_at
        assert (then.event_time, old.event_time, old.received_at) == (7, 8, 8)

    def test_parts_of_a_log_are_read_by_id(self, log: Log) -> None:
        with log.writer() as writer:
            for start in range(1, 31, 10):
                writer.append([b"%d" % n for n in range(start, start + 10)])
        for first, last in ((1, 30), (5, 5), (10, 11), (29, 99), (30, 30)):
            found = [message.id for batch in log.read(first, last) for message in batch]
            assert found == list(range(first, min(last, 30) + 1))
        for beyond in (31, 99):
            assert list(log.read(beyond)) == []
            assert list(log.block_ranges(beyond)) == []
        with pytest.raises(LogInputError):
            log.read(0)
        with pytest.raises(LogInputError, match="no colour"):
            log.read(columns=["colour"])
        assert [(r.first_id, r.last_id) for r in log.block_ranges(5, 15)] == [(5, 10), (11, 15)]

    def test_a_sequence_that_was_stored_is_dropped_after_reopening_too(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer("importer") as writer:
            assert writer.append([b"a"], sequence=3) == IdRange(1, 1)
            assert writer.append([b"a"], sequence=3) is None
        with open_logs().log(LogSpec(NAME)).writer("importer") as writer:
            assert writer.sequence == 3
            assert writer.append([b"a"], sequence=2) is None
            assert writer.append([b"b"], sequence=4) == IdRange(2, 2)
        with open_logs().log(LogSpec(NAME)).writer("someone else") as writer:
            assert writer.sequence == 0

    def test_watermark_confirms_what_was_appended_without_waiting(self, log: Log) -> None:
        confirmed: list[int] = []
        with log.writer() as writer:
            writer.on_durable(confirmed.append)
            ranges = [writer.append_nowait([b"x", b"y"]) for _ in range(100)]
            assert ranges[-1] == IdRange(199, 200)
            writer.durable(200)
            assert writer.last_id == 200
        assert confirmed == sorted(confirmed)
        assert confirmed[-1] == 200

    def test_a_single_message_is_sent_for_its_id(self, log: Log) -> None:
        with log.writer() as writer:
            assert [writer.send(b"a"), writer.send(Message(b"b"))] == [1, 2]
            assert log.last_id == 2
        assert [message.body for batch in log.read() for message in batch] == [b"a", b"b"]

    def test_p2_durability_coroutines_share_commits_and_each_gets_its_ids_once_they_are_durable(self, log: Log) -> None:
        async def sender(writer: Writer, number: int) -> None:
            for turn in range(5):
                ids = await writer.append_async([b"%d %d %d" % (number, turn, n) for n in range(3)])
                assert ids is not None
                assert log.last_id >= ids.last
                given.append((ids.first, number, turn))

        async def senders(writer: Writer) -> None:
            await asyncio.gather(*(sender(writer, number) for number in range(20)))
            await writer.durable_async(writer.last_id)

        given: list[tuple[int, int, int]] = []
        commits: list[int] = []
        with log.writer() as writer:
            writer.on_durable(commits.append)
            asyncio.run(senders(writer))
        bodies = [message.body for batch in log.read() for message in batch]
        assert bodies == [b"%d %d %d" % (number, turn, n) for _, number, turn in sorted(given) for n in range(3)]
        assert len(commits) < 100, "far fewer commits than packs"

    def test_whoever_asks_hears_of_each_commit_once_and_in_order(self, log: Log) -> None:
        heard: list[int] = []
        forget = log.on_append(heard.append)
        with log.writer() as writer:
            writer.append([b"a", b"b"])
            writer.append([b"c"])
            assert heard == [2, 3]
            forget()
            writer.append([b"d"])
        assert heard == [2, 3]

    def test_bodies_of_no_bytes_and_of_many_bytes_come_back(self, log: Log) -> None:
        large = random.Random(1).randbytes(5 << 20)
        with log.writer() as writer:
            writer.append([b"", large, b""])
            writer.append([b""] * 70_000)
        bodies = [body for batch in log.read(columns=["body"]) for body in batch.arrow.column("body").to_pylist()]
        assert bodies == [b"", large, b""] + [b""] * 70_000

    def test_p10_one_writer_a_second_one_is_refused_and_told_who_writes(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer, pytest.raises(WriterBusyError, match=r"process \d+ on "):
            writer.append([b"a"])
            open_logs().log(LogSpec(NAME)).writer()
        log.writer().close()

    def test_p3_delivery_acknowledged_messages_are_not_seen_after_a_clean_restart(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 11)])
        with log.reader("worker") as reader:
            assert sum(len(batch) for batch in reader.batches()) == 10
            reader.ack([5, 2, 1, 9])
            reader.ack(IdRange(6, 7))
            assert reader.pointer == 2
        with open_logs().log(LogSpec(NAME)).reader("worker") as reader:
            assert [message.id for batch in reader.batches() for message in batch] == [3, 4, 8, 10]
            reader.ack(i for i in (3, 4, 8, 10))
            assert reader.pointer == 10
        assert log.pointer("worker") == 10
        assert log.info().consumers == {"worker": 10}

    def test_consumers_do_not_know_of_one_another(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        with log.reader("one") as one, log.reader("two") as two:
            one.ack([1, 2])
            assert [message.id for batch in two.batches() for message in batch] == [1, 2]

    def test_a_newer_reader_of_the_same_name_fences_the_older(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        stale = log.reader("worker")
        with open_logs().log(LogSpec(NAME)).reader("worker") as newer:
            newer.ack(1)
        stale.ack(2)
        with pytest.raises(FencedError):
            stale.flush()
        with pytest.raises(FencedError):
            stale.ack(1)
        stale.close()
        assert log.pointer("worker") == 1

    def test_acknowledging_what_the_log_has_not_is_refused(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a"])
        with log.reader("worker") as reader:
            for wrong in (0, 2, [1, 2], IdRange(1, 5)):
                with pytest.raises(LogInputError):
                    reader.ack(wrong)
            reader.ack(1)
            reader.ack(1)
            assert reader.pointer == 1

    def test_a_follower_gets_what_is_appended_later_until_it_is_closed(self, log: Log) -> None:
        seen: list[int] = []
        all_seen = threading.Event()

        def follow() -> None:
            for batch in reader.batches(follow=True):
                seen.extend(message.id for message in batch)
                if len(seen) == 30:
                    all_seen.set()

        with log.reader("follower") as reader, log.writer() as writer:
            thread = threading.Thread(target=follow)
            thread.start()
            for _ in range(10):
                writer.append([b"a", b"b", b"c"])
            assert all_seen.wait(30)
            reader.close()
            thread.join(30)
        assert seen == list(range(1, 31))

    def test_a_pointer_can_be_set(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b", b"c"])
        log.set_pointer("job", 2)
        assert log.pointer("job") == 2
        with log.reader("job") as reader:
            assert [message.id for batch in reader.batches() for message in batch] == [3]
        with pytest.raises(LogInputError):
            log.set_pointer("job", 4)

    def test_a_reader_goes_to_an_id_and_to_a_time(self, log: Log, open_logs: Callable[[], LogStore]) -> None:
        with log.writer() as writer:
            for start in range(0, 40, 10):
                writer.append([Message(b"x", received_at=100 * (start + n)) for n in range(10)])
        assert [log.first_id_since(time) for time in (-5, 0, 1, 2500, 3900, 3901)] == [1, 1, 2, 26, 40, 41]
        with log.reader("job") as reader:
            reader.ack(IdRange(1, 30))
            reader.seek(log.first_id_since(2500))
            batches = reader.batches(5)
            assert next(batches).ids == IdRange(26, 30)
            reader.seek(9)
            assert reader.pointer == 8
            assert open_logs().log(LogSpec(NAME)).pointer("job") == 8
            assert [m.id for batch in batches for m in batch] == list(range(9, 41))
            reader.seek(41)
            assert list(reader.batches()) == []
            for beyond in (0, 42):
                with pytest.raises(LogInputError):
                    reader.seek(beyond)
        with open_logs().log(LogSpec(NAME)).reader("job") as reader:
            assert reader.pointer == 40

    def test_whoever_follows_without_a_name_gets_all_there_is_and_what_comes(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b", b"c"])
            batches = log.follow(2)
            assert next(batches).ids == IdRange(2, 3)
            writer.append([b"d"])
            assert next(batches).ids == IdRange(4, 4)

    def test_a_trimmed_log_begins_at_its_low_water_mark(self, log: Log, open_logs: Callable[[], LogStore]) -> None:
        with log.writer() as writer:
            for start in range(1, 31, 10):
                writer.append([Message(b"%d" % n, received_at=100 * n) for n in range(start, start + 10)])
            log.trim(15)
            log.trim(3)
            for each in (log, open_logs().log(LogSpec(NAME))):
                info = each.info()
                assert (each.first_id, info.first_id, info.last_id, info.count) == (15, 15, 30, 16)
                assert [m.body for batch in each.read() for m in batch] == [b"%d" % n for n in range(15, 31)]
                assert [m.id for batch in each.read(20, 22) for m in batch] == [20, 21, 22]
                assert each.first_id_since(100) == 15
                assert each.first_id_since(1700) == 17
                assert each.block_ranges()[0].first_id == 15
                found = each.verify()
                assert (found.ok, found.messages) == (True, 16)
            assert writer.append([b"31"]) == IdRange(31, 31)

    def test_what_was_trimmed_is_read_as_a_gap_or_refused(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 11)])
        log.trim(8)
        gap, rest = log.read(3, columns=["id"])
        assert isinstance(gap, Gap)
        assert (gap.ids, gap.reason, len(gap), list(gap), gap.arrow.num_rows) == (IdRange(3, 7), "trimmed", 0, [], 0)
        assert gap.arrow.schema == rest.arrow.schema
        assert rest.ids == IdRange(8, 10)
        (only,) = log.read(2, 5)
        assert isinstance(only, Gap)
        assert only.ids == IdRange(2, 5)
        assert next(log.follow(1)).ids == IdRange(1, 7)
        with pytest.raises(TrimmedError, match="ids 3 to 7"):
            list(log.read(3, gaps="none"))

    def test_a_log_that_was_trimmed_to_its_end_is_empty_and_goes_on(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        log.trim(3)
        assert (list(log.read()), log.info().count, log.first_id, log.verify().ok) == ([], 0, 3, True)
        with pytest.raises(LogInputError, match="ends at id 2"):
            log.trim(4)
        again = open_logs().log(LogSpec(NAME))
        with again.writer() as writer:
            assert writer.append([b"c"]) == IdRange(3, 3)
        assert [m.id for batch in again.read() for m in batch] == [3]

    def test_p3_delivery_a_consumer_gets_one_gap_for_what_was_trimmed_and_its_pointer_goes_over_it(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            for start in range(1, 31, 10):
                writer.append([b"%d" % n for n in range(start, start + 10)])
        with log.reader("worker") as reader:
            reader.ack([1, 2, 5, 6])
        log.trim(15)
        with open_logs().log(LogSpec(NAME)).reader("worker") as reader:
            batches = reader.batches()
            gap = next(batches)
            assert isinstance(gap, Gap)
            assert gap.ids == IdRange(3, 14)
            rest = list(batches)
            assert [m.id for batch in rest for m in batch] == list(range(15, 31))
            assert (reader.pointer, reader.missed) == (14, 12)
            reader.ack(IdRange(15, 20))
        with open_logs().log(LogSpec(NAME)).reader("worker") as reader:
            assert [m.id for batch in reader.batches() for m in batch] == list(range(21, 31))
            assert reader.missed == 0

    def test_a_gap_that_was_given_and_not_gone_over_is_given_again(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b", b"c"])
        log.trim(3)
        for _ in range(2):
            with log.reader("worker") as reader:
                assert next(reader.batches()).ids == IdRange(1, 2)
        with log.reader("worker") as reader:
            for batch in reader.batches():
                reader.ack(batch.ids)
            assert reader.pointer == 3

    def test_a_reader_that_trimming_overtakes_is_told_so(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 11)])
            with log.reader("worker") as reader:
                assert [batch.ids for batch in reader.batches()] == [IdRange(1, 10)]
                writer.append([b"%d" % n for n in range(11, 21)])
                log.trim(16)
                gap, rest = reader.batches()
                assert (isinstance(gap, Gap), gap.ids, rest.ids) == (True, IdRange(11, 15), IdRange(16, 20))
                reader.ack(IdRange(1, 20))
                with pytest.raises(LogInputError, match="ids 16 to 20"):
                    reader.seek(15)
                reader.seek(16)
        log.set_pointer("worker", 0)
        with log.reader("worker") as reader:
            assert next(reader.batches()).ids == IdRange(1, 15)

    def test_a_log_that_begins_later_counts_from_there(self, open_logs: Callable[[], LogStore]) -> None:
        log = open_logs().log(LogSpec("later"), first_id=1000)
        assert (log.first_id, log.last_id, log.verify().ok) == (1000, 999, True)
        with log.writer() as writer:
            assert writer.append([b"a", b"b"]) == IdRange(1000, 1001)
        again = open_logs().log(LogSpec("later"))
        assert [m.id for batch in again.read() for m in batch] == [1000, 1001]
        with pytest.raises(LogInputError):
            open_logs().log(LogSpec("never"), first_id=0)

    def test_appending_nothing_gives_no_ids(self, log: Log) -> None:
        with log.writer() as writer:
            ids = writer.append([])
            assert ids is not None
            assert len(ids) == 0
            assert writer.append([], sequence=1) == ids
            assert writer.sequence == 0
        assert log.last_id == 0

    def test_a_closed_writer_or_reader_says_so(self, log: Log) -> None:
        writer, reader = log.writer(), log.reader("worker")
        for thing in (writer, reader):
            thing.close()
            thing.close()
        with pytest.raises(LogError, match="closed"):
            writer.append([b"a"])
        with pytest.raises(LogError, match="closed"):
            reader.ack(1)

    def test_a_log_that_is_not_there_is_not_found_without_create(self, open_logs: Callable[[], LogStore]) -> None:
        with pytest.raises(LogNotFoundError):
            open_logs().log(LogSpec("none"), create=False)

    def test_a_sound_log_verifies(self, log: Log) -> None:
        with log.writer() as writer:
            for _ in range(5):
                writer.append([b"a", b"b"])
        found = log.verify()
        assert found.ok
        assert (found.blocks, found.messages) == (5, 10)

    def test_what_cannot_be_a_message_is_refused_and_nothing_is_stored(self, log: Log) -> None:
        wrong: list[Any] = [
            [b"a", "text"],
            [1],
            [Message(cast(bytes, "text"))],
            pa.RecordBatch.from_pydict({"body": [None]}),
        ]
        with log.writer() as writer:
            for messages in wrong:
                with pytest.raises(LogInputError):
                    writer.append(messages)
            assert writer.append([b"fine"]) == IdRange(1, 1)
