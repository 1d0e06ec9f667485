"""Search of a log: what is found equals a comparison message by message, whatever the size of the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import VirtualClock
from millstream.log import Log, LogInputError, LogSpec, Message, MessageFilter, open_store, search_messages
from suite.sizes import examples, sized

WORDS = st.sampled_from(["", "a", "b", "ab", "ä"])
MESSAGES = st.builds(
    Message,
    body=st.sampled_from([b"", b"a", b"xaby", b"\xff\xfe", "ä".encode()]),
    key=WORDS,
    source=WORDS,
    event_time=st.integers(0, 9),
    received_at=st.integers(0, 9),
    headers=st.lists(st.tuples(st.sampled_from("hi"), st.sampled_from([b"", b"1", b"\xff"])), max_size=3).map(tuple),
)  # fmt: skip
FILTERS = st.builds(
    MessageFilter,
    key=st.none() | WORDS,
    source=st.none() | WORDS,
    header=st.sampled_from(["h", "i"]),
    value=st.none() | st.sampled_from(["", "1"]),
    text=st.none() | st.sampled_from(["a", "ab", "ä"]),
    since=st.none() | st.integers(0, 5),
    until=st.none() | st.integers(6, 10),
    time=st.sampled_from(["received", "event"]),
) | st.builds(MessageFilter, key=WORDS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('search')}/log.db") as opened:
        yield opened


def steps(log: Log, wanted: MessageFilter, **limits: Any) -> Iterator[Any]:
    """The steps of a whole search; each must begin where the one before has ended."""
    first: int | None = None
    while True:
        step = search_messages(log, wanted, first_id=first, **limits)
        assert first is None or step.first_id == first
        assert step.next_id is None or step.next_id == step.last_id + 1 > step.first_id
        yield step
        if step.next_id is None:
            return
        first = step.next_id


def matches(message: Message, wanted: MessageFilter) -> bool:
    """The same, message by message."""
    moment = message.received_at if wanted.time == "received" else message.event_time
    assert moment is not None
    has_header = any(
        name == wanted.header and wanted.value in (None, value.decode("utf-8", "replace"))
        for name, value in message.headers
    )
    return (
        wanted.key in (None, message.key)
        and wanted.source in (None, message.source)
        and (wanted.header is None or has_header)
        and (wanted.text is None or wanted.text.encode() in message.body)
        and (wanted.since is None or moment >= wanted.since)
        and (wanted.until is None or moment < wanted.until)
    )


@examples(ci=100, long=2_000)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=5), min_size=1, max_size=6), FILTERS, st.integers(1, 4))
def test_a_search_finds_what_a_comparison_of_every_message_finds(
    store: Any, appends: Sequence[Sequence[Message]], wanted: MessageFilter, limit: int
) -> None:
    log = store.log(LogSpec(f"log-{time.monotonic_ns()}"))
    with log.writer() as writer:
        for messages in appends:
            writer.append(messages)
    expected = [message for batch in log.read() for message in batch if matches(message, wanted)]
    for limits in ({}, {"limit": limit}, {"most_bytes": 1}, {"seconds": 0.0}):
        found = list(steps(log, wanted, **limits))
        assert [message for step in found for message in step.messages] == expected
        assert found[-1].last_id == log.last_id and sum(step.rows for step in found) <= log.last_id
        assert all(len(step.messages) <= limits.get("limit", 100) for step in found)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (MessageFilter(), "give at least one of key, source, header, text, since and until"),
        (MessageFilter(value="1"), "without the name of the header"),
        (MessageFilter(key="k", text=""), "text to search for is empty"),
        (MessageFilter(since=5, until=5), "end must be after its beginning"),
    ],
)
def test_a_filter_that_is_none_is_refused(store: Any, wanted: MessageFilter, message: str) -> None:
    with pytest.raises(LogInputError, match=message):
        search_messages(store.log(LogSpec("empty")), wanted)


def test_an_empty_log_is_searched_at_once(store: Any) -> None:
    step = search_messages(store.log(LogSpec("empty")), MessageFilter(key="k"))
    assert (step.messages, step.next_id, step.rows, step.last_id) == ([], None, 0, 0)


def test_a_step_ends_after_its_seconds_and_its_bytes() -> None:
    clock = VirtualClock()
    with open_store("memory://") as store:
        log = store.log(LogSpec("many"))
        with log.writer() as writer:
            for _ in range(3):
                writer.append([Message(b"x" * 100)] * 5_000)  # a block each, too large to be joined
        found = list(steps(log, MessageFilter(text="y"), most_bytes=600_000, clock=clock))
        assert [step.last_id for step in found] == [10_000, 15_000] and found[0].bytes >= 600_000
        found = list(steps(log, MessageFilter(text="y"), seconds=0.0, clock=clock))
        assert [step.last_id for step in found] == [5_000, 10_000, 15_000]


def test_blocks_outside_a_time_range_are_not_read(store: Any) -> None:
    log = store.log(LogSpec("timed"))
    with log.writer() as writer:
        for minute in range(20):
            writer.append([Message(b"x", event_time=100 - minute, received_at=minute)] * 5_000)
    for wanted in (MessageFilter(since=7, until=8), MessageFilter(since=93, until=94, time="event")):
        (step,) = steps(log, wanted, limit=10_000)
        assert (len(step.messages), step.rows, step.messages[0].id) == (5_000, 5_000, 35_001)


def test_what_was_trimmed_is_left_out_and_damage_is_named(tmp_path: Path) -> None:
    import sqlite3

    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        log = store.log(LogSpec("damaged"))
        with log.writer() as writer:
            for number in range(4):
                writer.append([Message(b"x", key=f"k{number}")] * 5_000)
        log.trim(5_001)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'block%'"
        (table,) = next(connection.execute(names))
        damage = f"UPDATE {table} SET data = zeroblob(length(data)) WHERE first_id = 10001"
        assert connection.execute(damage).rowcount == 1
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        (step,) = steps(store.log(LogSpec("damaged"), create=False), MessageFilter(key="k2"))
        assert [(one.first_id, one.last_id, one.reason) for one in step.unreadable] == [(10_001, 15_000, "corrupt")]
        assert (step.messages, step.rows, step.first_id, step.last_id) == ([], 10_000, 5_001, 20_000)


def test_a_header_is_found_in_a_part_of_a_block(store: Any) -> None:
    log = store.log(LogSpec("headers"))
    with log.writer() as writer:
        writer.append([Message(b"", headers=(("n", b"%d" % number),) * (number % 3)) for number in range(9)])
    for first in range(1, 10):
        step = search_messages(log, MessageFilter(header="n", value="7"), first_id=first)
        assert [message.id for message in step.messages] == ([8] if first <= 8 else [])


@pytest.mark.long
def test_a_million_messages_are_searched_by_columns(tmp_path: Path) -> None:
    """Messages per second of each kind of filter; the limits of a step hold on the way."""
    count = sized(quick=50_000, ci=100_000, long=1_000_000)
    with open_store(f"segments:///{tmp_path}/log") as store:
        log = store.log(LogSpec("large"))
        with log.writer() as writer:
            for first in range(0, count, 25_000):
                writer.append([_reading(number) for number in range(first, min(count, first + 25_000))])
        for label, wanted, hits in (
            ("key", MessageFilter(key="k77"), count // 1000),
            ("source", MessageFilter(source="s8"), 0),
            ("header", MessageFilter(header="trace", value=str(count - 1)), 1),
            ("text", MessageFilter(text=f'"reading": {count - 1},'), 1),
        ):
            began = time.perf_counter()
            found = list(steps(log, wanted, limit=100_000))
            took = time.perf_counter() - began
            assert sum(len(step.messages) for step in found) == hits
            print(f"search by {label}: {count / took:,.0f} messages a second, {len(found)} steps")


def _reading(number: int) -> Message:
    body = b'{"reading": %d, "unit": "degC", "place": "New York"}' % number
    return Message(body, f"k{number % 1000}", f"s{number % 7}", headers=(("trace", b"%d" % number),))
