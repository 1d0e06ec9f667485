"""The document's table layout: what the original writes we read, and what we write the original reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.main import run
from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import (
    DamagedLogError,
    FencedError,
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    Message,
    MissingBlockError,
    WriterBusyError,
    WriterFailedError,
    copy_consumers,
    copy_log,
    open_store,
)
from millstream.log.mysql import parse_place
from millstream.log.mysql.driver import choose_driver
from millstream.log.nerve import NerveBackend, NerveHost, NerveQueue, is_nerve, parse_nerve
from millstream.log.nerve import reading as reading_module
from millstream.log.nerve import writing as writing_module
from millstream.log.nerve.packet import decode_packet, encode_packet
from millstream.log.reader import ACK_SECONDS
from millstream.log.sourced import Sourced
from millstream.testing.faulty_connection import Fault, FaultyDriver
from millstream.testing.nerve_original import OriginalQueue

NAME = "Weather_1"
SPEC = LogSpec(NAME)
OPTIONS = "layout=nerve&shards=3&pointers=2"

OpenOriginal = Callable[[], OriginalQueue]


@pytest.fixture
def url(queues: str) -> str:
    """A database for queues of three tables."""
    return f"{queues}?{OPTIONS}"


@pytest.fixture
def open_original(queues: str) -> Iterator[OpenOriginal]:
    """Opens the queue as the original does."""
    opened: list[OriginalQueue] = []

    def open_one(shards: int = 3, pointers: int = 2) -> OriginalQueue:
        opened.append(OriginalQueue(parse_place(queues), NAME, shards, pointers))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def original(open_original: OpenOriginal) -> OriginalQueue:
    """The queue with the 100 packets ``1`` to ``100`` of an original publisher."""
    queue = open_original()
    queue.send([b"%d" % n for n in range(1, 101)])
    return queue


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """The queue as a log; make the original's tables first where they are wanted."""
    with open_store(url) as store:
        yield store.log(SPEC)


def bodies(log: Log, first: int = 1) -> list[bytes]:
    return [message.body for batch in log.read(first) for message in batch]


# Both directions


def test_what_the_original_wrote_is_read_with_its_ids(original: OriginalQueue, log: Log) -> None:
    found = [message for batch in log.read() for message in batch]
    assert [(m.id, m.body) for m in found] == [(n, b"%d" % n) for n in range(1, 101)]
    assert {(m.source, m.key, m.headers, m.received_at) for m in found} == {("", "", (), 0)}
    assert [m.body for batch in log.read(50, 52) for m in batch] == [b"50", b"51", b"52"]
    assert log.verify().ok
    assert log.verify().messages == log.info().count == 100


def test_what_we_write_the_original_reads(log: Log, open_original: OpenOriginal) -> None:
    packs = [[b"a", b"", b"\x00'\\\xff"], [b"%d" % n for n in range(5000)], [b"z"]]
    with log.writer() as writer:
        ids = [writer.append(pack) for pack in packs]
    assert ids == [IdRange(1, 3), IdRange(4, 5003), IdRange(5004, 5004)]
    theirs = open_original()
    assert theirs.pointer() == 5004
    expected = list(enumerate([body for pack in packs for body in pack], 1))
    assert theirs.packets(1, 6000) == expected
    assert bodies(log) == [body for _, body in expected]


def test_publishers_take_turns(original: OriginalQueue, log: Log, open_original: OpenOriginal) -> None:
    with log.writer() as writer:
        writer.append([b"ours"] * 5)
    later = open_original()
    assert later.counter == 105
    later.send([b"theirs"] * 5)
    with log.writer() as writer:
        assert writer.append([b"ours again"]) == IdRange(111, 111)
    assert bodies(log, 101) == [b"ours"] * 5 + [b"theirs"] * 5 + [b"ours again"]
    assert log.verify().ok


def test_consumers_go_on_where_the_other_program_left_them(original: OriginalQueue, log: Log) -> None:
    original.move("billing", 40)
    with log.reader("billing") as reader:
        assert next(reader.batches(10)).ids == IdRange(41, 50)
        reader.ack(IdRange(41, 50))
        reader.ack(IdRange(60, 70))
    assert original.pointer("billing") == 50
    with log.reader("billing") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == [*range(51, 60), *range(71, 101)]
    original.move("billing", 80)
    assert log.info().consumers == {"billing": 80}
    with log.reader("billing") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == list(range(81, 101))
        reader.ack(IdRange(81, 100))
    assert original.pointer("billing") == 100


def test_a_queue_that_only_the_original_uses_is_read_without_a_change_to_its_database(
    original: OriginalQueue, queues: str
) -> None:
    original.move("billing", 7)
    for table in ("queues", "states"):
        original.execute(f"DROP TABLE IF EXISTS millstream_nerve_{table}")
    with open_store(f"{queues}?layout=nerve", read_only=True) as store:
        log = store.log(SPEC, create=False)
        assert len(bodies(log)) == 100
        assert log.info().consumers == {"billing": 7}
        assert log.info().writer is None
        assert log.verify().ok
    connection = choose_driver(parse_place(queues))(parse_place(queues))
    assert not connection.rows("SHOW TABLES LIKE 'millstream_nerve%'")
    connection.close()


def test_rows_above_the_pointer_are_seen_by_nobody_and_give_way_to_the_next_writer(
    original: OriginalQueue, log: Log
) -> None:
    original.insert([b"never confirmed"] * 7)
    assert len(bodies(log)) == log.last_id == 100
    assert [block.last_id for block in log.block_ranges()] == [100]
    with log.writer() as writer:
        writer.append([b"a"] * 3)
        assert bodies(log, 101) == [b"a"] * 3
        writer.append([b"b"] * 3000)
    assert bodies(log, 101) == [b"a"] * 3 + [b"b"] * 3000
    assert log.verify().ok


# Counts of tables


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("layout=nerve&shards=8", r"tables for shards 3 \(of which 3 exist\), and the URL has shards=8"),
        ("layout=nerve&shards=3&pointers=1", r"tables for pointers 2 \(of which 2 exist\), and the URL has pointers=1"),
    ],
)
def test_another_count_than_the_one_that_exists_is_refused_with_what_was_found(
    original: OriginalQueue, queues: str, options: str, told: str
) -> None:
    for create in (True, False):
        with open_store(f"{queues}?{options}") as store, pytest.raises(LogInputError, match=told):
            store.log(SPEC, create=create)
    with pytest.raises(AssertionError), open_store(f"{queues}?{options}") as store:
        raise AssertionError(store.logs())


def test_the_count_that_exists_is_found_and_two_are_refused(
    original: OriginalQueue, queues: str, open_original: Callable[[int, int], OriginalQueue]
) -> None:
    with open_store(f"{queues}?layout=nerve") as store:
        assert store.logs() == [NAME]
        assert len(bodies(store.log(SPEC))) == 100
    open_original(5, 2)
    with open_store(f"{queues}?layout=nerve") as store, pytest.raises(LogInputError, match=r"3 \(.* exist\), 5 \("):
        store.log(SPEC)
    with open_store(f"{queues}?layout=nerve&shards=3") as store:
        assert len(bodies(store.log(SPEC))) == 100
    with open_store(f"{queues}?layout=nerve&shards=5") as store, pytest.raises(MissingBlockError, match="1 to 100"):
        bodies(store.log(SPEC))


def test_a_new_queue_has_the_tables_of_the_document(queues: str) -> None:
    with open_store(f"{queues}?layout=nerve") as store:
        store.log(LogSpec("NQLocalTest"))
        with pytest.raises(LogInputError, match="at most 40 characters"):
            store.log(LogSpec("x" * 41))
        with pytest.raises(LogNotFoundError):
            store.log(LogSpec("other"), create=False)
    connection = choose_driver(parse_place(queues))(parse_place(queues))
    names = {str(name) for (name,) in connection.rows("SHOW TABLES LIKE 'queue%'")}
    connection.close()
    assert names == {f"queue_NQLocalTest_004_{n:04d}" for n in range(4)} | {"queue_NQLocalTest_001_0000_pointers"}


def test_a_queue_whose_pointers_are_gone_is_not_begun_anew(original: OriginalQueue, log: Log, url: str) -> None:
    for number in range(2):
        original.execute(f"DROP TABLE queue_{NAME}_002_{number:04d}_pointers")
    with open_store(url) as store, pytest.raises(DamagedLogError, match="none for pointers"):
        store.log(SPEC)


# Damage


def test_a_missing_row_is_told_and_does_not_hold_up_the_pointer(original: OriginalQueue, log: Log) -> None:
    """Nerve: the id was skipped without a word, and the pointer stuck before it for ever."""
    original.execute(f"DELETE FROM queue_{NAME}_003_0000 WHERE id = 51")
    with log.reader("worker") as reader:
        with pytest.raises(MissingBlockError, match="ids 51 to 51"):
            for batch in reader.batches():
                reader.ack(batch.ids)
        assert reader.pointer == 50
    log.set_pointer("worker", 51)
    with log.reader("worker") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == list(range(52, 101))
        reader.ack(IdRange(52, 100))
    assert original.pointer("worker") == 100
    assert log.verify().problems == ("ids 51 to 51 are missing",)


def test_an_empty_answer_for_ids_that_should_be_there_is_an_error_not_a_crash(
    original: OriginalQueue, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nerve: index out of range."""
    monkeypatch.setattr(reading_module, "_FIRST_SPAN", 4)
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d} WHERE id BETWEEN 21 AND 60")
    seen: list[int] = []
    with pytest.raises(MissingBlockError, match="ids 21 to 60"):
        for batch in log.read():
            seen += batch.ids
    assert seen == list(range(1, 21))
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d}")
    with pytest.raises(MissingBlockError, match="ids 1 to 100"):
        list(log.read())
    assert list(log.block_ranges()) == []
    with pytest.raises(DamagedLogError, match="should end at id 100"):
        log.writer()


def test_a_row_in_a_table_where_it_does_not_belong_is_told(original: OriginalQueue, log: Log) -> None:
    original.execute(f"INSERT INTO queue_{NAME}_003_0001 VALUES (51, 'twice')")
    with pytest.raises(DamagedLogError, match=r"id 51 .* lies in two tables"):
        list(log.read())
    assert log._backend.check(NAME) == ["1 rows lie in tables where their ids do not belong"]


def test_a_pointer_far_behind_its_rows_is_not_believed(original: OriginalQueue, log: Log) -> None:
    original.execute(f"INSERT INTO queue_{NAME}_003_0000 VALUES (3000000, 'x')")
    with pytest.raises(DamagedLogError, match="Restore the pointer from a copy"):
        log.writer()


# Values


def test_large_messages_fill_packets_and_one_that_fits_into_none_is_told(
    log: Log, open_original: OpenOriginal, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = writing_module._packets
    monkeypatch.setattr(writing_module, "_packets", lambda share, _: packed(share, 10_000))
    large = [bytes([n]) * 3000 for n in range(10)] + [b"'" * 2900, b"small"]
    with log.writer() as writer:
        assert writer.append(large) == IdRange(1, 12)
        with pytest.raises(WriterFailedError, match="raise its max_allowed_packet"):
            writer.append([b"x" * 10_000])
    assert bodies(log) == large
    assert [data for _, data in open_original().packets(1, 20)] == large


def test_answers_are_bounded_by_bytes_however_large_the_messages_are(original: OriginalQueue, log: Log) -> None:
    with log.writer() as writer:
        writer.append([b"x" * 100_000] * 30)
    found = log._backend.read(NAME, 1, 130, max_bytes=500_000)
    assert sum(len(block.data) for block in found) < 600_000
    assert found[0].first_id == 1
    (one,) = log._backend.read(NAME, 110, 130, max_bytes=10)
    assert (one.first_id, one.last_id) == (110, 110)
    assert len(bodies(log)) == 130


@pytest.mark.parametrize("more", [{"key": "k"}, {"source": "s"}, {"headers": (("a", b""),)}, {"event_time": 1}])
def test_what_the_layout_has_no_place_for_is_refused_and_nothing_is_stored(log: Log, more: dict[str, Any]) -> None:
    with log.writer() as writer:
        with pytest.raises(LogInputError, match="bodies of messages alone"):
            writer.append([Message(b"x", **more)])
        assert writer.append([Message(b"fine")]) == IdRange(1, 1)


def test_times_are_not_there_to_be_asked_for(original: OriginalQueue, log: Log) -> None:
    with pytest.raises(LogInputError, match="keeps no times"):
        log.first_id_since(5)


def test_consumers_that_the_database_takes_for_one_are_refused(original: OriginalQueue, log: Log) -> None:
    log.set_pointer("worker", 5)
    with pytest.raises(LogInputError, match="would share a pointer"):
        log.reader("WORKER")
    with pytest.raises(LogInputError, match="shorter name"):
        log.reader("x" * 250)


# Packets


@pytest.fixture(scope="module")
def packet_class() -> Any:
    """The document's packet as Google's library knows it."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="pip install protobuf")
    from google.protobuf import descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="packet.proto", syntax="proto3")
    file.enum_type.add(name="NerveSourceType").value.add(name="NST_TEST", number=0)
    packet = file.message_type.add(name="NerveSourcedPacket")
    packet.field.add(name="source", number=1, type=field.TYPE_ENUM, type_name=".NerveSourceType", label=1)
    packet.field.add(name="sourceId", number=2, type=field.TYPE_UINT64, label=1)
    packet.field.add(name="packet", number=10, type=field.TYPE_BYTES, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("NerveSourcedPacket"))


@given(number=st.integers(0, 2**31 - 1), source_id=st.integers(0, 2**64 - 1), payload=st.binary(max_size=300))
def test_sourced_packets_are_those_of_the_document(
    packet_class: Any, number: int, source_id: int, payload: bytes
) -> None:
    theirs = packet_class(source=number, sourceId=source_id, packet=payload).SerializeToString()
    ours = Sourced("NST_TEST" if number == 0 else str(number), source_id, payload)
    assert encode_packet(ours) == theirs
    assert decode_packet(theirs) == ours


@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_packet_are_refused_or_read_as_the_library_reads_them(packet_class: Any, data: bytes) -> None:
    try:
        found = decode_packet(data)
    except LogInputError:
        return
    try:
        expected = packet_class.FromString(data)
    except Exception:
        return  # it is stricter about groups and about text
    assert found.payload == expected.packet
    assert found.source_id == expected.sourceId


def test_sourced_and_protobuf_messages_go_both_ways(log: Log, open_original: OpenOriginal, packet_class: Any) -> None:
    with log.writer() as writer:
        writer.append_sourced([Sourced("NST_TEST", 7, b"payload"), Sourced("3", 2**64 - 1, b"")])
        writer.append_proto([packet_class(sourceId=9)])
        for wrong in (Sourced("JFK", 1, b""), Sourced("NST_TEST", 1, b"", "name"), Sourced("NST_TEST", -1, b"")):
            with pytest.raises(LogInputError, match="the layout nerve has a source type of NST_TEST or a number"):
                writer.append_sourced([wrong])
    theirs = open_original()
    assert [packet_class.FromString(data).sourceId for _, data in theirs.packets(1, 3)] == [7, 2**64 - 1, 9]
    theirs.send([packet_class(source=2, sourceId=5, packet=b"x").SerializeToString()])
    assert list(log.read_sourced(1, 2)) == [(1, Sourced("NST_TEST", 7, b"payload")), (2, Sourced("3", 2**64 - 1, b""))]
    assert list(log.read_sourced(4)) == [(4, Sourced("2", 5, b"x"))]
    assert [(number, message.sourceId) for number, message in log.read_proto(packet_class, 3)] == [(3, 9), (4, 5)]


# Replies that are lost


STEPS = ["START", "UPDATE millstream_nerve_queues SET last_id", "UPDATE `queue", "INSERT INTO `queue", "COMMIT"]
FAULTS = [Fault(step, when) for step in STEPS for when in ("before", "after")]
FAULTS += [Fault("INSERT INTO `queue", "before", 1213), Fault("COMMIT", "before", 1213)]


@pytest.mark.parametrize("count", [5, 30])
def test_a_commit_whose_reply_is_lost_is_done_exactly_once(
    url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "TOGETHER", 10)
    clock, place = VirtualClock(), parse_nerve(url)
    driver = FaultyDriver(choose_driver(place.database))
    with LogStore(NerveBackend(place, clock, driver=driver, patience=30), clock, bodies_only=True) as store:
        log, expected = store.log(SPEC), []
        with log.writer("importer") as writer:
            for sequence, fault in enumerate(FAULTS, 1):
                driver.faults.append(fault)
                pack = [b"%d %d" % (sequence, n) for n in range(count)]
                assert writer.append(pack, sequence=sequence) == IdRange(len(expected) + 1, len(expected) + count)
                assert not driver.faults, f"{fault} has happened"
                expected += pack
        assert bodies(log) == expected
        with log.writer("importer") as writer:
            assert writer.sequence == len(FAULTS)


# Rate


def test_each_table_gets_no_more_statements_than_asked_for(queues: str) -> None:
    clock = VirtualClock()
    place = parse_nerve(f"{queues}?{OPTIONS}&rps=50")
    with LogStore(NerveBackend(place, clock), clock, bodies_only=True) as store, store.log(SPEC).writer() as writer:
        writer.append([b"x"] * 3)
        begin = clock.monotonic()
        writer.append([b"x"] * 3)
        writer.append([b"x"])
        assert clock.monotonic() - begin == pytest.approx(0.04)
    with LogStore(NerveBackend(parse_nerve(f"{queues}?{OPTIONS}"), clock), clock, bodies_only=True) as store:
        begin = clock.monotonic()
        with store.log(SPEC).writer() as writer:
            writer.append([b"x"])
        assert clock.monotonic() == begin


# Places


def test_one_definition_leads_to_the_queue_on_each_of_its_hosts() -> None:
    queue = NerveQueue(
        "NQLocalTest",
        {
            "127.0.0.1": NerveHost("nerve", 3307, 8, 2, 50),
            "::1": NerveHost("nerve"),
        },
        user="m@e",
        password_file="/run/password",
    )
    assert queue.url("127.0.0.1") == (
        "mysql://m%40e@127.0.0.1:3307/nerve?layout=nerve&shards=8&pointers=2&rps=50&password_file=/run/password"
    )
    assert queue.url("::1").startswith("mysql://m%40e@[::1]:3306/nerve?layout=nerve&shards=4&pointers=1&password")
    with pytest.raises(LogInputError, match=r"not on 'elsewhere'; it is on 127\.0\.0\.1, ::1"):
        queue.url("elsewhere")


def test_settings_name_queues_and_their_hosts(queues: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = parse_place(queues)
    config = tmp_path / "millstream.toml"
    config.write_text(
        f"""
        [log.nerve.{NAME}.hosts."{place.host}"]
        dbname = "{place.database}"
        port = {place.port}
        table_parallelism = 2
        """
    )
    for store in (f"nerve:{NAME}", f"nerve:{NAME}@{place.host}"):
        assert run(["log", "create", NAME, "--config", str(config), "--store", store]) == 0
    with open_store(f"{queues}?layout=nerve&shards=2") as opened:
        assert opened.logs() == [NAME]
    for store, told in ((f"nerve:{NAME}@elsewhere", "is not on 'elsewhere'"), ("nerve:other", "[log.nerve.other]")):
        assert run(["log", "ls", "--config", str(config), "--store", store]) == 2
        assert told in capfd.readouterr().err
    config.write_text(config.read_text() + "colour = 1")
    assert run(["log", "ls", "--config", str(config), "--store", f"nerve:{NAME}"]) == 2
    assert "colour" in capfd.readouterr().err


def test_a_place_shows_itself_without_its_password_and_opens_again() -> None:
    place = parse_nerve("mysql://me:s3cret@host/db?layout=nerve&shards=4&pointers=2&rps=50&driver=text")
    assert (place.shards, place.pointers, place.rps, place.database.driver) == (4, 2, 50, "text")
    assert "s3cret" not in f"{place!r} {place}"
    again = parse_nerve(place.url.replace(":***", ":s3cret"))
    assert again == place
    assert not is_nerve("mysql://me@host/db")
    for wrong in ("layout=blocks", "layout=nerve&shards=x", "layout=nerve&shards=-1", "layout=nerve&colour=red"):
        with pytest.raises(LogInputError) as caught:
            open_store(f"mysql://me:s3cret@host/db?{wrong}")
        assert "s3cret" not in str(caught.value)


# Copies


def test_a_queue_is_copied_into_blocks_and_back_with_its_ids_and_consumers(
    original: OriginalQueue, url: str, other_queues: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original.move("billing", 40)
    blocks, back = f"sqlite:///{tmp_path / 'log.db'}", f"{other_queues}?layout=nerve&shards=2"
    assert run(["log", "copy", "--consumers", url, blocks, NAME]) == 0
    assert run(["log", "copy", blocks, back, NAME]) == 2
    assert "--bodies" in capfd.readouterr().err
    assert run(["log", "copy", "--consumers", "--bodies", blocks, back, NAME]) == 0
    for target in (blocks, back):
        with open_store(target) as store:
            log = store.log(SPEC, create=False)
            assert bodies(log) == [b"%d" % n for n in range(1, 101)]
            assert log.pointer("billing") == 40
            assert log.verify().ok
    original.send([b"more"] * 5)
    assert run(["log", "copy", url, blocks, NAME]) == 0
    assert "ids 101 to 105" in capfd.readouterr().out
    with open_store(blocks) as store:
        assert all(m.received_at for batch in store.log(SPEC).read() for m in batch), "the time of the copy"


def test_a_queue_gets_another_number_of_tables_by_copying_it_into_another_database(
    original: OriginalQueue, url: str, other_queues: str
) -> None:
    with open_store(url, read_only=True) as old, open_store(f"{other_queues}?layout=nerve&shards=5") as new:
        source, target = old.log(SPEC, create=False), new.log(SPEC)
        assert copy_log(source, target).messages == 100
        original.move("billing", 9)
        assert copy_consumers(source, target) == {"billing": 9}
    theirs = OriginalQueue(parse_place(other_queues), NAME, 5, 1)
    assert theirs.packets(1, 200) == [(n, b"%d" % n) for n in range(1, 101)]
    assert (theirs.pointer(), theirs.pointer("billing")) == (100, 9)
    theirs.close()


# An original publisher at the same time


def test_p10_one_writer_a_pointer_that_somebody_else_moved_stops_ours(log: Log, open_original: OpenOriginal) -> None:
    with log.writer() as writer:
        writer.append([b"a"])
        theirs = open_original()
        theirs.send([b"theirs"] * 3)
        for count in (1, 3000):
            with pytest.raises(FencedError, match="somebody else publishes to the queue"):
                writer.append([b"ours"] * count)
    assert bodies(log) == [b"a", b"theirs", b"theirs", b"theirs"]


@pytest.mark.parametrize("count", [3, 3000])
def test_p10_one_writer_ours_stops_at_rows_of_somebody_else_and_does_not_overwrite_them(
    log: Log, open_original: OpenOriginal, count: int
) -> None:
    with log.writer() as writer:
        writer.append([b"a"])
        theirs = open_original()
        theirs.insert([b"theirs"] * 3)
        with pytest.raises(FencedError, match=r"from id [234] on"):
            writer.append([b"ours"] * count)
        theirs.move()
    assert bodies(log) == [b"a", b"theirs", b"theirs", b"theirs"]


def test_p10_one_writer_ours_does_not_begin_while_somebody_else_is_at_work(
    original: OriginalQueue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    original.insert([b"under way"])
    with LogStore(NerveBackend(parse_nerve(url), clock), clock, bodies_only=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(clock, "sleep", lambda _: original.send([b"more"]))
            with pytest.raises(WriterBusyError, match="without a lease, at this moment"):
                store.log(SPEC).writer()
        with store.log(SPEC).writer() as writer:
            assert writer.last_id == 102


@pytest.mark.parametrize("count", [3, 3000])
def test_p10_one_writer_a_stale_one_of_ours_stores_nothing_more(log: Log, url: str, count: int) -> None:
    with open_store(url) as other:
        stale = log.writer()
        stale.append([b"a"])
        stale._committer._backend.release_lease(NAME, epoch=1)
        with other.log(SPEC).writer() as writer:
            writer.append([b"newer"])
            with pytest.raises(FencedError, match="newer writer"):
                stale.append([b"too late"] * count)
            writer.append([b"newer"])
        stale.close()
    assert bodies(log) == [b"a", b"newer", b"newer"]


def test_a_reader_whose_pointer_a_receiver_of_the_original_moves_is_fenced(original: OriginalQueue, log: Log) -> None:
    reader = log.reader("worker")
    reader.ack(IdRange(1, 10))
    reader.flush()
    original.move("worker", 30)
    reader.ack(IdRange(11, 20))
    with pytest.raises(FencedError):
        reader.flush()
    reader.close()
    assert log.pointer("worker") == 30


# Defects of the original that are particular to its tables; the others are in test_log_original_defects.py


def test_p10_one_writer_two_publishers_of_ours_cannot_be_at_work_at_once(log: Log, url: str) -> None:
    """Nerve: 47 % of the confirmed messages were overwritten."""
    with open_store(url) as other, log.writer() as writer:
        writer.append([b"a"])
        with pytest.raises(WriterBusyError, match="process"):
            other.log(SPEC).writer()
        writer.append([b"b"])
    assert bodies(log) == [b"a", b"b"]


def test_the_last_acknowledgements_are_stored_while_the_reader_idles(original: OriginalQueue, url: str) -> None:
    """Nerve: the pointer stayed 4,786 to 11,015 behind, for ever."""
    clock = VirtualClock()
    store = LogStore(NerveBackend(parse_nerve(url), clock), clock, bodies_only=True)
    with store, store.log(SPEC).reader("worker") as reader:
        for batch in reader.batches():
            reader.ack(batch.ids)
        assert original.pointer("worker") == 0, "acknowledgements are gathered"
        clock.advance(ACK_SECONDS)
        deadline = SystemClock().monotonic() + 30
        while original.pointer("worker") != 100 and SystemClock().monotonic() < deadline:
            pass
        assert original.pointer("worker") == 100, "and stored although nothing more is acknowledged"


def test_doctor_looks_at_the_server_of_a_queue(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--store", url]) in {0, 1}
    assert "innodb_flush_log_at_trx_commit" in capfd.readouterr().out


def test_a_lone_send_waits_for_no_timer(log: Log) -> None:
    """Nerve: 20.6 ms."""
    clock = SystemClock()
    taken = []
    with log.writer() as writer:
        for _ in range(100):
            begin = clock.monotonic()
            writer.append([b"test"])
            taken.append(clock.monotonic() - begin)
    assert sorted(taken)[50] < 0.02


def test_missing_rows_come_as_a_gap_to_whoever_asks_for_all(original: OriginalQueue, log: Log) -> None:
    for number in (50, 51, 52):
        original.execute(f"DELETE FROM queue_{NAME}_003_{number % 3:04d} WHERE id = {number}")
    found = list(log.read(gaps="all"))
    assert [(part.first_id, part.last_id, isinstance(part, Gap)) for part in found] == [
        (1, 49, False),
        (50, 52, True),
        (53, 100, False),
    ]


def test_a_queue_whose_old_rows_somebody_has_deleted_is_trimmed_to_what_is_there(
    original: OriginalQueue, log: Log, tmp_path: Path
) -> None:
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d} WHERE id <= 40")
    with pytest.raises(MissingBlockError, match="ids 1 to 40"):
        list(log.read())
    log.trim(41)
    assert bodies(log)[0] == b"41"
    assert log.verify().ok
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        target = store.log(SPEC, first_id=41)
        assert copy_log(log, target).messages == 60
        assert target.verify().ok
