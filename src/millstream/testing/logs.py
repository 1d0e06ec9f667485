"""The conformance suite of the log: what every log store must do, whatever backend is below it.

Inherit the class in a test module and give your class the fixture it asks for::

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
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from millstream.core.clock import SystemClock
from millstream.core.message import MESSAGE_SCHEMA, Message, to_arrow
from millstream.log import (
    FencedError,
    IdRange,
    Log,
    LogError,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    Retention,
    SystemLogError,
    Tiering,
    Writer,
    WriterBusyError,
    copy_log,
    system_log,
)
from millstream.log.backends.memory import MemoryBackend
from millstream.testing.log_backends import NAME
from millstream.testing.log_gaps import GapConformance
from millstream.testing.waiting import join


class LogStoreConformance(GapConformance):
    """What a log store over any backend must do. Needs the fixture ``open_logs``."""

    def test_p1_order_ids_are_dense_and_read_back_in_order(self, log: Log) -> None:
        with log.writer() as writer:
            ranges = [writer.append([b"%d" % n for n in range(start, start + 7)]) for start in range(0, 70, 7)]
        assert ranges == [IdRange(first, first + 6) for first in range(1, 71, 7)]
        messages = [message for batch in log.read() for message in batch]
        assert [message.id for message in messages] == list(range(1, 71))
        assert [message.body for message in messages] == [b"%d" % n for n in range(70)]

    def test_the_last_ids_of_all_logs_are_those_of_each(self, open_logs: Callable[[], LogStore]) -> None:
        store = open_logs()
        store.log(LogSpec("empty"))
        for name in ("one", "two"):
            with store.log(LogSpec(name)).writer() as writer:
                writer.append([b"x"] * len(name * 2 if name == "two" else name))
        assert dict(open_logs().last_ids(["empty", "one", "two"])) == {"empty": 0, "one": 3, "two": 6}

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
        with pytest.raises(LogInputError, match="unknown columns colour"):
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
            join(thread)
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

    def test_a_system_log_is_written_by_its_keeper_and_read_by_all(self, open_logs: Callable[[], LogStore]) -> None:
        store = open_logs()
        kept = store.log(system_log("ledger", "ledger"))
        with kept.writer() as writer:
            writer.append([b"entry"])
        for name in ("system:ledger", "system:another"):
            with pytest.raises(SystemLogError, match="it can be read, but not made"):
                store.log(LogSpec(name))
        read = store.log(LogSpec("system:ledger"), create=False)
        assert [message.body for batch in read.read() for message in batch] == [b"entry"]
        refused: list[Callable[[], object]] = [
            read.writer,
            lambda: read.reader("worker"),
            lambda: read.trim(2),
            lambda: read.set_pointer("snapshot", 0),
            lambda: read.set_retention(Retention(max_count=0)),
            lambda: read.set_tiering(Tiering("file:///nowhere")),
            lambda: read.put_metadata("note", b"x"),
            read.move_blocks,
            read.remove_leftovers,
        ]
        for act in refused:
            with pytest.raises(SystemLogError, match="'system:ledger' is a system log: it can be read, but not"):
                act()
        assert dict(open_logs().kinds()) == {"system:ledger": "ledger"}
        for create in (True, False):
            with pytest.raises(LogInputError, match="is of kind 'ledger', not 'queue'"):
                store.log(system_log("ledger", "queue"), create=create)
        with pytest.raises(LogInputError, match="its store recorded the kind"):
            kept.put_metadata("kind", b"application")

    def test_a_system_log_is_copied_until_its_keeper_opens_it(self, open_logs: Callable[[], LogStore]) -> None:
        with LogStore(MemoryBackend(SystemClock()), SystemClock()) as other:
            source = other.log(system_log("ledger", "ledger"))
            store = open_logs()
            for bodies in ([b"1"], [b"2", b"3"]):
                with source.writer() as writer:
                    writer.append(bodies)
                copy_log(source, store.log_to_copy(source), bodies_only=True)
            kept = store.log(system_log("ledger", "ledger"))
            assert kept.last_id == 3
            for again in (store, open_logs()):
                with pytest.raises(
                    SystemLogError, match=r"'system:ledger' in .* is a system log, which only Millstream writes"
                ):
                    again.log_to_copy(source)

    def test_logs_of_users_may_have_the_names_of_system_logs(self, open_logs: Callable[[], LogStore]) -> None:
        store = open_logs()
        kept = store.log(system_log("ledger", "ledger"))
        with kept.writer() as ours, store.log(LogSpec("ledger")).writer() as theirs:
            ours.append([b"entry"])
            theirs.append([b"hello", b"again"])
        again = open_logs()
        assert dict(again.kinds()) == {"ledger": "application", "system:ledger": "ledger"}
        assert [again.log(LogSpec(name), create=False).last_id for name in again.logs()] == [2, 1]

    def test_the_kind_of_a_log_of_users_is_that_of_its_first_writer(self, open_logs: Callable[[], LogStore]) -> None:
        store = open_logs()
        for name in ("early", "late"):
            store.log(LogSpec(name))
        with store.log(LogSpec("late")).writer() as writer:
            writer.append([b"a"])
        found = [store.log(LogSpec(name, kind="topic")).kind for name in ("early", "late", "new")]
        assert found == ["topic", "application", "topic"]
        assert store.log(LogSpec("new"), create=False).info().kind == "topic"

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
