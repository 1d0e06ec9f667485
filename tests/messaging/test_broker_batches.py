"""Batches between our clients and our broker say and do what the protocol's single messages do."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.batching.message_events import make_tick
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import LogError, LogSpec
from millstream.log import Message as Stored
from millstream.log.block import Block
from millstream.messaging.broker.handlers.batch_codec import name_run, to_array, to_columns, to_log_messages
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.deduplication_index import DeduplicationIndex, NameRun
from millstream.messaging.broker.storage.journal import JOURNAL
from millstream.messaging.broker.storage.journal_events import Finished, read_event
from millstream.messaging.client import Message, PartialFailureError, Producer, SimpleConsumer, call_parts
from millstream.messaging.client.batch_codec import consecutive_offsets, from_batch, to_batch
from millstream.messaging.client.endpoints import parse_endpoints
from millstream.messaging.client.errors import ThrottledError
from millstream.messaging.client.message import MessageStamp, Receipt, from_wire, to_wire
from millstream.messaging.client.message_ids import MessageIds
from millstream.messaging.client.route import Queue
from millstream.messaging.client.transport import Transport
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import (
    MAX_BATCH,
    AckBatchRequest,
    ByteColumn,
    SendBatchRequest,
    SendBatchResponse,
    byte_column,
    text_column,
)
from millstream.testing.brokers import BrokerProcess
from support.broker_harness import CALL, BrokerHarness, bodies, settle, with_harness

HERE = parse_endpoints("127.0.0.1:8081")
BORN = 1_700_000_000_000_123


def stamp(message_id: str = "", kind: int = v2.NORMAL) -> MessageStamp:
    return MessageStamp(message_id=message_id, kind=kind, namespace="", born=BORN, host="host")


def batch_of(messages: list[Message], kind: int = v2.NORMAL) -> SendBatchRequest:
    return to_batch(messages, [f"id-{number}" for number in range(len(messages))], stamp(kind=kind))


@pytest.mark.parametrize("queues", [None, [1, 0]])
@pytest.mark.parametrize("fields", [{}, {"tag": "ß", "keys": ("a",)}, {"message_group": "g"}])
def test_a_few_messages_as_objects_are_the_same_as_in_columns(fields: Any, queues: list[int] | None) -> None:
    batch = batch_of([Message("t", body, **fields) for body in (b"1", b"2")], v2.FIFO if fields else v2.NORMAL)
    assigned = None if queues is None else np.array(queues)
    columns = to_columns(batch, assigned)
    found = to_log_messages(batch, assigned)
    headers = [[(pair["name"], pair["value"]) for pair in row["headers"]] for row in columns.to_pylist()]
    assert [list(message.headers) for message in found] == headers
    for name in ("body", "event_time", "source", "key"):
        assert [getattr(message, name) for message in found] == columns.column(name).to_pylist()


def offsets_of(answer: SendBatchResponse, count: int) -> list[int]:
    return list(consecutive_offsets(answer.offsets, count))


def ack_request(group: str, handles: list[str]) -> AckBatchRequest:
    return AckBatchRequest("", group, "plain", text_column(handles))


def test_a_large_send_of_single_messages_lets_other_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []

    async def step(desk: BrokerHarness) -> None:
        async def others() -> None:
            while True:
                turns.append(None)
                await asyncio.sleep(0)

        async def publish(_topic: str, messages: Sequence[Stored]) -> Sequence[int]:
            assert len(turns) >= 4, "the event loop stands still"
            return range(1, len(messages) + 1)

        monkeypatch.setattr(desk.core, "publish", publish)
        waiting = asyncio.ensure_future(others())
        messages = [Message("plain", b"x", properties={"p": "q"}) for _ in range(5_000)]
        answer = await desk.service.send_batch(batch_of(messages), CALL)
        waiting.cancel()
        assert (answer.code, answer.offsets) == (v2.OK, list(range(5_000)))

    with_harness(step)


def test_headers_of_other_programs_that_cannot_be_read_fail_no_answer() -> None:
    async def step(desk: BrokerHarness) -> None:
        unreadable = [
            (f"mq:{name}", b"\xff") for name in ("id", "tag", "key", "group", "trace", "dead-topic", "dead-id")
        ]
        numbers = [("mq:queue", b"x"), ("mq:queue", b"99999999999"), ("mq:queue", b"-1"), ("mq:deliver-at", b"1e9")]
        messages = [Stored(b"%d" % row, key="k", headers=(each,)) for row, each in enumerate((*unreadable, *numbers))]
        alike = [Stored(b"x", headers=(("mq:id", b"id-%d" % row), ("mq:queue", b"y"))) for row in range(100)]
        for topic in ("plain", "ordered"):
            desk.core.topic(topic)
            writer = desk.core.writer_of(topic)
            assert writer is not None
            writer.append(messages + alike)  # as a relay does
        count = len(messages + alike)
        assert len(await desk.receive("g", "plain", count)) == count
        batch = await desk.service.receive_batch(receive_request("by-batch", "plain", len(messages)), CALL)
        assert (batch.code, batch.ids.count, set(batch.queues)) == (v2.OK, len(messages), {0})
        batch = await desk.service.receive_batch(receive_request("by-batch", "plain"), CALL)
        assert (batch.code, batch.ids.count, set(batch.queues)) == (v2.OK, len(alike), {0})
        assert len((await desk.pull("plain", 0, 0))[0]) == 100
        assert bodies(await desk.receive("g", "ordered", auto_renew=True))[:1] == [b"0"]

    with_harness(step)


def receive_request(group: str, topic: str, count: int = 1000) -> v2.ReceiveMessageRequest:
    request = v2.ReceiveMessageRequest(batch_size=count)
    request.group.name, request.message_queue.topic.name = group, topic
    request.invisible_duration.seconds = 30
    return request


def read_all(desk: BrokerHarness, topic: str) -> list[Stored]:
    return [
        msgspec.structs.replace(message, received_at=None, id=0)
        for batch in desk.store.log(LogSpec(topic)).read(1)
        for message in batch
    ]


def nameless(message: Stored) -> Stored:
    """*message* without its id; the order of properties is not kept by protobuf."""
    (first, _), *others = message.headers
    assert first == "mq:id"
    return msgspec.structs.replace(message, headers=tuple(sorted(others)))


TEXT = st.text("abcü-", min_size=1, max_size=5)
MESSAGES = st.builds(
    Message,
    st.just("one"),
    st.binary(min_size=1, max_size=20),
    tag=st.one_of(st.just(""), TEXT),
    keys=st.lists(TEXT, max_size=2).map(tuple),
    properties=st.dictionaries(TEXT, TEXT, max_size=2),
)
UNIFORM = st.builds(Message, st.just("one"), st.binary(min_size=1), tag=TEXT, keys=TEXT.map(lambda key: (key,)))


@settings(max_examples=20, deadline=None)
@given(st.one_of(st.lists(MESSAGES, min_size=1, max_size=6), st.lists(UNIFORM, min_size=1, max_size=6)))
def test_a_batch_is_stored_and_given_as_its_messages_would_be(messages: list[Message]) -> None:
    async def step(desk: BrokerHarness) -> None:
        batch = batch_of(messages)
        answer = await desk.service.send_batch(batch, CALL)
        assert (answer.code, answer.refused) == (v2.OK, {})
        in_batch, count = read_all(desk, "one"), len(messages)
        singly = v2.SendMessageRequest(
            messages=[
                to_wire(message, stamp(f"again-{name}"))
                for message, name in zip(messages, batch.ids.texts(), strict=True)
            ]
        )
        again = await desk.service.send_message(singly, CALL)
        assert offsets_of(answer, count) == [entry.offset - count for entry in again.entries]
        alone = read_all(desk, "one")[count:]
        assert list(map(nameless, in_batch)) == list(map(nameless, alone))
        received = await desk.service.receive_batch(receive_request("by-batch", "one", count), CALL)
        frames = await desk.receive("by-frame", "one", count)
        handles = [frame.system_properties.receipt_handle for frame in frames]
        expected = [from_wire(frame, HERE) for frame in frames]
        assert [msgspec.structs.replace(each, receipt_handle=handle) for each, handle in zip(
            from_batch(received, "one", HERE), handles, strict=True
        )] == expected  # fmt: skip

    with_harness(step)


def _many(kind: str, count: int) -> list[Message]:
    """*count* messages: with nothing, with a tag and a key each, with tags and bodies of different lengths, or some of
    them with more than the others."""
    if kind == "bare":
        return [Message("plain", b"%d" % number) for number in range(count)]
    if kind == "tagged":
        return [Message("plain", b"%d" % n, tag=f"ü{n % 3}", keys=(f"key-{n}",)) for n in range(count)]
    if kind == "uneven":
        return [Message("plain", b"x" * (1 + n % 9), tag="t" * (1 + n % 3)) for n in range(count)]
    more: list[dict[str, Any]] = [{}, {"properties": {"a": "b"}}, {"keys": ("k", "l")}, {"tag": "t"}]
    return [Message("plain", b"%d" % number, **more[number % len(more)]) for number in range(count)]


def test_a_tick_in_a_run_of_many_messages_is_not_given() -> None:
    async def step(desk: BrokerHarness) -> None:
        sent = _many("bare", 300)
        for part in (sent[:150], sent[150:]):
            assert (await desk.service.send_batch(batch_of(part), CALL)).code == v2.OK
            desk.core.topic("plain").writer.append([make_tick()])
            desk.core.topic("plain")._known.discard_after(0)  # both parts have the same ids
        given: list[bytes] = []
        while (batch := await desk.service.receive_batch(receive_request("g", "plain"), CALL)).code == v2.OK:
            given += batch.bodies.values()
        assert given == [message.body for message in sent]

    with_harness(step)


@pytest.mark.parametrize("kind", ["bare", "tagged", "uneven", "mixed"])
def test_a_run_of_many_messages_is_given_as_they_would_be_singly_and_counts_as_they_do(kind: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        sent = _many(kind, 300)
        assert (await desk.service.send_batch(batch_of(sent), CALL)).code == v2.OK
        frames = [*await desk.receive("singly", "plain", 300)]
        expected = [msgspec.structs.replace(from_wire(frame, HERE), receipt_handle="") for frame in frames]
        assert [message.body for message in expected] == [message.body for message in sent]
        batches = [
            await desk.service.receive_batch(receive_request("run", "plain", count), CALL) for count in (100, 200)
        ]
        given = [message for batch in batches for message in from_batch(batch, "plain", HERE)]
        assert [msgspec.structs.replace(message, receipt_handle="") for message in given] == expected
        assert (await desk.service.receive_batch(receive_request("run", "plain"), CALL)).code == v2.MESSAGE_NOT_FOUND
        handles = [message.receipt_handle for message in given]
        done = await desk.service.ack_batch(ack_request("run", handles[:150]), CALL)
        assert done.code == v2.OK
        desk.clock.advance(31)
        again = await desk.service.receive_batch(receive_request("run", "plain"), CALL)
        assert again.bodies.values() == [message.body for message in sent[150:]]
        assert set(again.attempts) == {2}
        late = await desk.service.ack_batch(ack_request("run", handles[150:]), CALL)
        assert len(late.refused) == 150

    with_harness(step)


def test_what_was_appended_to_the_log_is_given_in_runs_too() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.core.topic("plain").publish([Stored(b"%d" % number) for number in range(100)])
        batch = await desk.service.receive_batch(receive_request("g", "plain"), CALL)
        frames = await desk.receive("h", "plain", 100)
        assert batch.ids.texts() == [frame.system_properties.message_id for frame in frames]
        assert batch.bodies.values() == [b"%d" % number for number in range(100)]

    with_harness(step)


def test_what_is_wrong_in_a_batch_is_refused_as_it_is_alone() -> None:
    wrong: list[tuple[dict[str, Any], int]] = [
        ({"bodies": byte_column([b"x", b""])}, v2.MESSAGE_BODY_EMPTY),
        ({"ids": text_column(["a", " "])}, v2.ILLEGAL_MESSAGE_ID),
        ({"ids": text_column(["c", "m" * 256])}, v2.ILLEGAL_MESSAGE_ID),
        ({"tags": ["a", "b|c"]}, v2.ILLEGAL_MESSAGE_TAG),
        ({"keys": [("a",), (" ",)]}, v2.ILLEGAL_MESSAGE_KEY),
        ({"properties": [{}, {"KEYS": "x"}]}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"bodies": byte_column([b"x", b"x" * (4 * 2**20 + 1)])}, v2.MESSAGE_BODY_TOO_LARGE),
    ]

    async def step(desk: BrokerHarness) -> None:
        good = SendBatchRequest(
            namespace="",
            topic="plain",
            kind=v2.NORMAL,
            group="",
            host="host",
            born=BORN,
            ids=text_column(["a", "b"]),
            bodies=byte_column([b"x", b"y"]),
        )
        for number, (change, code) in enumerate(wrong):
            fresh = msgspec.structs.replace(good, ids=text_column([f"{number}-a", f"{number}-b"]))
            answer = await desk.service.send_batch(msgspec.structs.replace(fresh, **change), CALL)
            assert answer.code == v2.MULTIPLE_RESULTS, change
            assert {row: refused[0] for row, refused in answer.refused.items()} == {1: code}
        before = desk.core.topic("plain").last_id
        for change, code in (
            ({"kind": v2.FIFO, "group": "g"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ({"topic": "ordered", "kind": v2.FIFO}, v2.ILLEGAL_MESSAGE_GROUP),
            ({"topic": "later", "kind": v2.DELAY}, v2.ILLEGAL_DELIVERY_TIME),
            ({"kind": 99}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ):
            assert (await desk.service.send_batch(msgspec.structs.replace(good, **change), CALL)).code == code
        assert desk.core.topic("plain").last_id == before == len(wrong)

    with_harness(step)


@pytest.mark.parametrize("born", [3 * 10**17, 2**63, -(2**63)])
@pytest.mark.parametrize("count", [2, 100])
def test_a_batch_born_in_no_year_of_the_protocol_is_refused_alone(born: int, count: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        wrong = msgspec.structs.replace(batch_of(_many("bare", count)), born=born)
        answer, other = await asyncio.gather(desk.service.send_batch(wrong, CALL), desk.send("plain", b"other"))
        assert answer.code == v2.BAD_REQUEST
        assert {code for code, _ in answer.refused.values()} == {v2.BAD_REQUEST}
        assert other.status.code == v2.OK
        assert desk.core.topic("plain").last_id == 1

    with_harness(step)


def test_a_time_that_no_datetime_has_is_received_as_the_nearest_one_that_has() -> None:
    times = [3 * 10**17, -(10**17), BORN]

    async def step(desk: BrokerHarness) -> None:
        await desk.core.topic("plain").publish([Stored(b"x", event_time=time) for time in times])
        batch = await desk.service.receive_batch(receive_request("g", "plain"), CALL)
        in_batch = [message.born_at for message in from_batch(batch, "plain", HERE)]
        singly = [from_wire(frame, HERE).born_at for frame in await desk.receive("h", "plain")]
        assert in_batch == singly
        assert [(moment.year, moment.tzinfo) for moment in in_batch] == [(9999, UTC), (1, UTC), (2023, UTC)]

    with_harness(step)


def test_p4_an_ordered_batch_goes_to_the_queue_of_its_group_and_comes_in_order() -> None:
    async def step(desk: BrokerHarness) -> None:
        messages = [Message("ordered", b"%d" % number, message_group="g") for number in range(100)]
        answer = await desk.service.send_batch(batch_of(messages, v2.FIFO), CALL)
        assert offsets_of(answer, 100) == list(range(100))
        await desk.send("ordered", b"alone", message_group="g")
        got = await desk.receive("g", "ordered", 1000, auto_renew=True)
        assert bodies(got) == [*(b"%d" % number for number in range(100)), b"alone"]
        assert len({message.system_properties.queue_id for message in got}) == 1

    with_harness(step)


def test_a_batch_that_is_sent_again_is_stored_once() -> None:
    def batch(ids: list[str]) -> SendBatchRequest:
        return SendBatchRequest(
            namespace="",
            topic="plain",
            kind=v2.NORMAL,
            group="",
            host="host",
            born=BORN,
            ids=text_column(ids),
            bodies=text_column(ids),
        )

    async def first(desk: BrokerHarness) -> None:
        assert offsets_of(await desk.service.send_batch(batch(["a", "b", "c"]), CALL), 3) == [0, 1, 2]
        assert offsets_of(await desk.service.send_batch(batch(["a", "b", "c"]), CALL), 3) == [0, 1, 2]
        assert (await desk.service.send_batch(batch(["x", "b", "x", "y"]), CALL)).offsets == [3, 1, 3, 4]

    async def after_restart(desk: BrokerHarness) -> None:
        assert (await desk.service.send_batch(batch(["y", "a", "z"]), CALL)).offsets == [4, 0, 5]
        assert bodies(await desk.receive("g", "plain")) == [b"a", b"b", b"c", b"x", b"y", b"z"]

    with_harness(first, after_restart)


def test_a_batch_of_acknowledgements_says_which_failed() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b", b"c")
        got = await desk.service.receive_batch(receive_request("g", "plain"), CALL)
        a, b, c = got.handles.texts()
        settled = await desk.service.ack_batch(ack_request("g", [a, "nonsense", b, b]), CALL)
        assert (settled.code, list(settled.refused)) == (v2.MULTIPLE_RESULTS, [1])
        settled = await desk.service.ack_batch(ack_request("g", [a, b]), CALL)
        assert (settled.code, list(settled.refused)) == (v2.INVALID_RECEIPT_HANDLE, [0, 1])
        desk.clock.advance(31)
        late = await desk.service.ack_batch(ack_request("g", [c]), CALL)
        assert late.code == v2.INVALID_RECEIPT_HANDLE
        assert bodies(await desk.receive("g", "plain")) == [b"c"]

    with_harness(step)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_of_acknowledgements_is_recorded_as_ranges(in_order: bool) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", *(b"%d" % number for number in range(100)))
        got = await desk.service.receive_batch(receive_request("g", "plain"), CALL)
        handles = [handle for number, handle in enumerate(got.handles.texts()) if number != 50]
        if not in_order:
            random.Random(1).shuffle(handles)
        handles.insert(70, "nonsense")
        settled = await desk.service.ack_batch(ack_request("g", handles), CALL)
        assert list(settled.refused) == [70]
        *_, batch = desk.store.log(JOURNAL).read(1)
        *_, last = batch
        assert read_event(last) == Finished("g", "plain", [(1, 50), (52, 100)])
        assert [(run.first, run.last) for run in desk.core.delivery("g", "plain").in_flight] == [(51, 51)]
        settled = await desk.service.ack_batch(ack_request("g", got.handles.texts()), CALL)
        assert list(settled.refused) == [row for row in range(100) if row != 50]

    with_harness(step)


def test_gzip_delays_and_damage_come_through_in_batches() -> None:
    async def step(desk: BrokerHarness) -> None:
        due = desk.clock.now() + MICROSECONDS
        await desk.send("later", b"late", deliver_at=due)
        desk.clock.advance(2)
        desk.delayed_messages.check_due_now()
        zipped = v2.SendMessageRequest(messages=[v2.Message(body=gzip.compress(b"zipped"))])
        zipped.messages[0].topic.name = "plain"
        zipped.messages[0].system_properties.message_id = "z"
        zipped.messages[0].system_properties.body_encoding = v2.GZIP
        await desk.service.send_message(zipped, CALL)
        batch = await desk.service.receive_batch(receive_request("g", "plain"), CALL)
        assert [(each.body, each.is_corrupted) for each in from_batch(batch, "plain", HERE)] == [(b"zipped", False)]
        damaged = from_batch(msgspec.structs.replace(batch, crc=batch.crc ^ 1), "plain", HERE)
        assert [each.is_corrupted for each in damaged] == [True]
        await settle(lambda: desk.core.topic("later").last_id == 1)
        (late,) = from_batch(await desk.service.receive_batch(receive_request("g", "later"), CALL), "later", HERE)
        assert late.deliver_at is not None
        assert late.deliver_at.timestamp() * MICROSECONDS == due

    with_harness(step)


def test_calls_of_one_moment_are_stored_together_and_one_that_is_given_up_harms_no_other() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"first")
        blocks = desk.store.log(LogSpec("plain")).info().blocks
        calls = [asyncio.ensure_future(desk.send("plain", b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        calls[7].cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found[7], asyncio.CancelledError)
        offsets = [each.entries[0].offset for each in found if isinstance(each, v2.SendMessageResponse)]
        assert len(set(offsets)) == 49
        assert desk.store.log(LogSpec("plain")).info().blocks <= blocks + 2

    with_harness(step)


def test_a_commit_that_fails_is_told_to_all_who_shared_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        topic = desk.core.topic("plain")

        def refuse(*_: object, **__: object) -> None:
            raise LogError("the disk is full")

        monkeypatch.setattr(topic._writer, "append_nowait", refuse)
        calls = [desk.send("plain", b"%d" % number) for number in range(5)]
        assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {LogError}
        monkeypatch.undo()
        assert (await desk.send("plain", b"0")).entries[0].offset == 0

    with_harness(step)


def test_as_many_names_are_remembered_as_promised_and_not_many_more() -> None:
    remembered = DeduplicationIndex(10)
    for number in range(1, 100):
        remembered.add([b"%d" % number], [number])
        assert all(remembered.get(b"%d" % each) == each for each in range(max(number - 9, 1), number + 1))
        assert len(remembered._young) + len(remembered._old) <= 20
    remembered.discard_after(95)
    assert remembered.get(b"95") == 95
    assert remembered.get(b"96") is None
    assert remembered.contains_none([b"96", b"1"])


@given(
    st.lists(
        st.one_of(
            st.builds(NameRun, st.sampled_from([b"p", b"q", b""]), st.integers(0, 40), st.integers(1, 12)),
            st.lists(
                st.builds(lambda run: run.names()[0], st.builds(NameRun, st.just(b"p"), st.integers(0, 50), st.just(1)))
            ),
            st.integers(0, 60),
        ),
        max_size=12,
    )
)
def test_runs_of_names_are_remembered_as_their_names_would_be(steps: list[Any]) -> None:
    """A list of names, or a run, is added unless one of them is known; a number is the last that counts."""
    remembered, expected, last = DeduplicationIndex(1000), dict[bytes, int](), 0
    for step in steps:
        if isinstance(step, int):
            remembered.discard_after(step)
            expected = {name: number for name, number in expected.items() if number <= step}
            continue
        names = step.names() if isinstance(step, NameRun) else list(dict.fromkeys(step))
        is_new = remembered.contains_none(step if isinstance(step, NameRun) else names)
        assert is_new == expected.keys().isdisjoint(names)
        if is_new and isinstance(step, NameRun):
            remembered.add_run(step, last + 1)
        elif is_new:
            remembered.add(names, range(last + 1, last + 1 + len(names)))
        if is_new:
            expected.update(zip(names, range(last + 1, last + 1 + len(names)), strict=True))
            last += len(names)
    assert len(remembered._young) == len(expected)
    for name in [*expected, b"p0000000A", b"p0000000a", b"p-0000001", b"", b"p", b"00000001"]:
        assert remembered.get(name) == expected.get(name)


def test_ids_of_a_call_of_our_clients_are_one_run() -> None:
    ids = MessageIds(VirtualClock()).take(100)
    run = name_run(text_column(ids))
    assert run is not None
    assert [name.decode() for name in run.names()] == ids
    for wrong in (
        ids[:50] + ids[51:],
        [*ids[1:], ids[0]],
        [*ids[:99], "X" + ids[99][1:]],
        [each.lower() for each in ids],
    ):
        assert name_run(text_column(wrong)) is None
    for others in (["short"], ["not-a-hexadecimal"], ["0" * 30 + "FFFFFFFF", "0" * 30 + "00000000"]):
        assert name_run(text_column(others)) is None


def test_a_run_of_ids_that_is_sent_again_is_stored_once() -> None:
    async def first(desk: BrokerHarness) -> None:
        ids = MessageIds(desk.clock).take(300)

        async def send(part: slice) -> list[int]:
            batch = to_batch([Message("plain", name.encode()) for name in ids[part]], ids[part], stamp())
            return offsets_of(await desk.service.send_batch(batch, CALL), len(ids[part]))

        assert await send(slice(0, 100)) == list(range(100))
        assert await send(slice(0, 100)) == list(range(100))
        assert await send(slice(50, 200)) == list(range(50, 200))
        assert await send(slice(90, 95)) == list(range(90, 95))
        assert await send(slice(200, 205)) == list(range(200, 205))
        assert await send(slice(199, 300)) == list(range(199, 300))
        assert desk.core.topic("plain").last_id == 300

    with_harness(first)


def test_after_a_part_that_may_be_sent_again_no_other_part_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_parts, "MAX_MESSAGES", 50)
    sent: list[str] = []

    async def send_part(_queue: Any, _messages: Any, ids: Sequence[str], _kind: int) -> list[Any]:
        sent.extend(ids)
        return [ThrottledError("later") if len(sent) == 100 else Receipt(each, 0, 0, HERE) for each in ids]

    async def send() -> list[Any]:
        producer = Producer("127.0.0.1:1")
        monkeypatch.setattr(producer, "_send_part", send_part)
        producer.millstream_servers.add(HERE)
        ids = [str(number) for number in range(150)]
        queue = Queue(0, "broker", 0, HERE, v2.READ_WRITE, (v2.FIFO,))
        return list(await producer._send_plain(queue, [Message("t", b"x")] * 150, ids, v2.FIFO))

    results = asyncio.run(send())
    assert len(sent) == 100
    assert [isinstance(result, Receipt) for result in results] == [True] * 50 + [False] * 100


def _note_calls(transport: Transport, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = transport.exchange

    async def noted(name: str, *arguments: Any) -> Any:
        calls.append(name)
        return await exchange(name, *arguments)

    monkeypatch.setattr(transport, "exchange", noted)


def test_many_messages_go_in_parts_to_a_server_that_takes_no_columns(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("parts")
    monkeypatch.setattr(call_parts, "MAX_MESSAGES", 50)
    calls: list[str] = []

    async def talk() -> None:
        place = parse_endpoints(str(broker.place))
        async with (
            Producer(str(place), ["parts"]) as producer,
            SimpleConsumer(str(place), "g", {"parts": "*"}, await_duration=5) as consumer,
        ):
            producer.batch_servers.clear()
            for transport in (producer.transport(place), consumer.transport(place)):
                _note_calls(transport, calls, monkeypatch)
            receipts = await producer.send_many([Message("parts", b"%d" % n) for n in range(120)])
            assert [receipt.offset for receipt in receipts] == list(range(120))
            got = [message for _ in range(4) for message in await consumer.receive(32, invisible=30)]
            consumer.batch_servers.clear()
            await consumer.ack(*got)
            assert len(got) == 120
        assert (calls.count("SendMessage"), calls.count("AckMessage")) == (3, 3)

    asyncio.run(talk())


def test_our_clients_use_batches_and_tell_what_failed(broker: BrokerProcess) -> None:
    broker.create_topic("batches")

    async def talk() -> None:
        place = str(broker.place)
        async with (
            Producer(place, ["batches"]) as producer,
            SimpleConsumer(place, "g", {"batches": "*"}, await_duration=5) as consumer,
        ):
            receipts = await producer.send_many([Message("batches", b"%d" % n, keys=("k", "l")) for n in range(3)])
            assert [receipt.offset for receipt in receipts] == [0, 1, 2]
            with pytest.raises(PartialFailureError) as failed:
                await producer.send_many([Message("batches", b"x"), Message("batches", b"y", properties={"TAGS": "x"})])
            assert [type(result).__name__ for result in failed.value.results] == ["Receipt", "BadRequestError"]
            got = await consumer.receive(10, invisible=30)
            assert [message.body for message in got] == [b"0", b"1", b"2", b"x"]
            assert got[0].keys == ("k", "l")
            await consumer.ack(*got[:2])
            with pytest.raises(PartialFailureError):
                await consumer.ack(*got)
            assert await consumer.receive(10, invisible=30) == []

    asyncio.run(talk())


@given(st.lists(st.text(max_size=2)))
def test_a_column_has_the_values_that_it_was_made_of(texts: list[str]) -> None:
    values = [text.encode() for text in texts]
    assert text_column(texts) == byte_column(values)
    column = byte_column(values)
    assert column.is_valid
    assert column.values() == values
    assert column.texts() == texts
    assert to_array(column).to_pylist() == values


@pytest.mark.parametrize(
    ("count", "lengths", "data"),
    [(10**12, [0], b""), (2, [1], b"abc"), (0, [1], b"a"), (2, [3, -1], b"ab"), (2, [1, 1, 1], b"abc"), (1, [], b"")],
)
def test_a_column_that_contradicts_itself_is_refused(count: int, lengths: list[int], data: bytes) -> None:
    wrong = ByteColumn(count, lengths, data)
    assert not wrong.is_valid

    async def step(desk: BrokerHarness) -> None:
        good = batch_of([Message("plain", b"x")])
        for change in ({"ids": wrong}, {"bodies": wrong}):
            with pytest.raises(StatusError) as refused:
                await desk.service.send_batch(msgspec.structs.replace(good, **change), CALL)
            assert refused.value.code == v2.MESSAGE_CORRUPTED
        with pytest.raises(StatusError):
            await desk.service.ack_batch(AckBatchRequest("", "g", "plain", wrong), CALL)

    with_harness(step)


@pytest.mark.parametrize(
    "column", [{"tags": ["a"]}, {"keys": [("a",)] * 3}, {"properties": [{"a": "b"}]}, {"tags": ["a"], "kind": v2.FIFO}]
)
def test_a_batch_whose_columns_have_different_lengths_is_refused(column: dict[str, Any]) -> None:
    async def step(desk: BrokerHarness) -> None:
        batch = msgspec.structs.replace(batch_of(_many("bare", 2)), **column)
        with pytest.raises(StatusError, match="entries in the column") as refused:
            await desk.service.send_batch(batch, CALL)
        assert refused.value.code == v2.MESSAGE_CORRUPTED
        assert desk.core.topic("plain").last_id == 0

    with_harness(step)


def test_a_batch_of_too_many_messages_is_refused_before_there_is_an_object_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = MAX_BATCH + 1
    many = ByteColumn(count, [1], bytes(count))
    monkeypatch.setattr(ByteColumn, "_cut", lambda *_: pytest.fail("an object for each message"))

    async def step(desk: BrokerHarness) -> None:
        batch = msgspec.structs.replace(batch_of(_many("bare", 1)), ids=many, bodies=many)
        for call in (
            desk.service.send_batch(batch, CALL),
            desk.service.ack_batch(AckBatchRequest("", "g", "plain", many), CALL),
        ):
            with pytest.raises(StatusError, match="the limit is 1,048,576") as refused:
                await call
            assert refused.value.code == v2.PAYLOAD_TOO_LARGE

    with_harness(step)


@pytest.mark.parametrize("kind", ["bare", "mixed"])
def test_small_messages_that_are_being_stored_count_with_more_than_their_bodies(kind: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        ids = MessageIds(desk.clock)
        calls = [desk.service.send_batch(to_batch(_many(kind, 100), ids.take(100), stamp()), CALL) for _ in range(2)]
        stored, refused = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(stored, SendBatchResponse)
        assert isinstance(refused, StatusError)
        assert refused.code == v2.TOO_MANY_REQUESTS

    with_harness(step, limits=Limits(longest_poll=0, max_pending_bytes=1500))


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"host": "h" * 256}, v2.MESSAGE_PROPERTIES_TOO_LARGE, "the born host"),
        ({"group": "g" * 64}, v2.ILLEGAL_MESSAGE_GROUP, "message group"),
    ],
)
def test_a_batch_with_a_long_host_or_group_is_refused_before_each_message_has_a_copy_of_it(
    change: Any, code: int, text: str
) -> None:
    async def step(desk: BrokerHarness) -> None:
        batch = batch_of(_many("bare", 100))
        with pytest.raises(StatusError, match=text) as refused:
            await desk.service.send_batch(msgspec.structs.replace(batch, **change), CALL)
        assert refused.value.code == code
        assert (await desk.service.send_batch(msgspec.structs.replace(batch, host="h" * 255), CALL)).code == v2.OK

    with_harness(step)


def test_of_many_messages_each_second_one_is_refused_and_the_others_keep_their_places() -> None:
    async def step(desk: BrokerHarness) -> None:
        bodies = [b"%d" % row if row % 2 else b"" for row in range(1000)]
        batch = msgspec.structs.replace(batch_of(_many("bare", 1000)), bodies=byte_column(bodies))
        answer = await desk.service.send_batch(batch, CALL)
        assert sorted(answer.refused) == list(range(0, 1000, 2))
        offsets = [offset for row, offset in enumerate(answer.offsets) if row % 2]
        assert offsets == sorted(set(offsets))

    with_harness(step)


def test_a_message_id_that_is_no_text_is_refused() -> None:
    async def step(desk: BrokerHarness) -> None:
        batch = msgspec.structs.replace(batch_of([Message("plain", b"x")]), ids=byte_column([b"\xff"]))
        with pytest.raises(StatusError) as refused:
            await desk.service.send_batch(batch, CALL)
        assert refused.value.code == v2.MESSAGE_CORRUPTED

    with_harness(step)


def count_reads(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The ids of each read of the log of ``plain`` from now on."""
    log, reads = desk.core.topic("plain").message_cache._log, list[tuple[int, ...]]()
    read = log.read
    monkeypatch.setattr(log, "read", lambda *ids: reads.append(ids) or read(*ids))
    return reads


def test_a_large_block_is_read_once_for_consumers_that_take_parts_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        sent = _many("bare", 3000)
        assert (await desk.service.send_batch(batch_of(sent), CALL)).code == v2.OK
        reads, given = count_reads(desk, monkeypatch), list[bytes]()
        for _ in range(3):
            given += (await desk.service.receive_batch(receive_request("g", "plain"), CALL)).bodies.values()
        assert given == [message.body for message in sent]
        assert len(reads) == 1

    with_harness(step)


def test_few_blocks_of_large_messages_are_read_ahead_and_kept() -> None:
    async def step(desk: BrokerHarness) -> None:
        cache, kept = desk.core.topic("plain").message_cache, list[int]()
        for number in range(8):
            await desk.core.topic("plain").publish([Stored(b"%d" % number + bytes(3 << 20))])
        for number in range(1, 9):
            (message,) = await cache.read(number, number)
            assert message.body[:1] == b"%d" % (number - 1)
            kept.append(len(cache._batches))
        assert kept == [1, 3, 3, 5, 5, 5, 5, 5]
        (message,) = await cache.read(1, 1)
        assert (message.id, len(cache._batches)) == (1, 5)
        assert cache._bytes == sum(batch.raw_bytes for batch in cache._batches.values()) <= 16 << 20

    with_harness(step)


def test_blocks_are_decoded_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        for number in range(6):
            await desk.core.topic("plain").publish([Stored(b"%d" % number + bytes(20_000)) for _ in range(10)])
        threads, decode = list[int](), Block.decode
        monkeypatch.setattr(Block, "decode", lambda *given: threads.append(threading.get_ident()) or decode(*given))
        for _ in range(6):
            assert (await desk.service.receive_batch(receive_request("g", "plain", 10), CALL)).bodies.count == 10
        assert len(threads) == 6
        assert threading.get_ident() not in threads

    with_harness(step)


def test_blocks_are_read_ahead_for_a_consumer_that_takes_one_message_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def step(desk: BrokerHarness) -> None:
        for number in range(6):
            await desk.core.topic("plain").publish([Stored(b"%d" % number + bytes(20_000)) for _ in range(10)])
        reads, given = count_reads(desk, monkeypatch), list[bytes]()
        for _ in range(6):
            given += (await desk.service.receive_batch(receive_request("g", "plain", 10), CALL)).bodies.values()
        assert [body[:1] for body in given] == [b"%d" % (row // 10) for row in range(60)]
        assert len(reads) == 3

    with_harness(step)
