"""What a task of the batch job does, without Spark: the same batches as the plain rule over everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.records import encode_batch
from millstream.batching import BatchConfig
from millstream.batching.messages import TICK_SOURCE, event_of
from millstream.core.message import Message, to_arrow
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.feeding import BATCH_SCHEMA, Feeder, batch_part
from millstream.testing.batching import plain_batches

Untidy = Callable[..., list[Message]]


def numbered(messages: Sequence[Message]) -> list[Message]:
    return [msgspec.structs.replace(message, id=number) for number, message in enumerate(messages, 1)]


def feed(messages: Sequence[Message], rules: BatchConfig, chunk: int, *, flush: bool = True) -> pa.Table:
    """The output of one task that is given *messages*, sorted as Spark sorts them, in parts of *chunk* rows."""
    ordered = sorted(messages, key=lambda m: (m.source, m.received_at, m.id))
    parts = [to_arrow(ordered[start : start + chunk]) for start in range(0, len(ordered), chunk)]
    bound = max(message.received_at or 0 for message in messages)
    return pa.Table.from_batches(batch_part(parts, rules, bound, flush=flush), BATCH_SCHEMA)


@given(seed=st.integers(0, 1 << 32), chunk=st.sampled_from([1, 7, 100, 5000]), count=st.integers(1, 300))
def test_p5_the_batches_of_a_task_are_those_of_the_plain_rule(
    untidy: Untidy, rules: BatchConfig, seed: int, chunk: int, count: int
) -> None:
    messages = numbered(untidy(seed, count))
    by_id = {message.id: message for message in messages}
    bound = max(message.received_at or 0 for message in messages)
    batches, rejects = plain_batches(map(event_of, messages), rules, bound)
    rows = feed(messages, rules, chunk).to_pylist()

    expected = {b.batch: encode_batch(b, [by_id[number] for number in b.events]) for b in batches}
    found = {row["batch"]: row for row in rows if row["batch"] is not None}
    assert found.keys() == expected.keys()
    for batch, row in found.items():
        header = expected[batch].header
        assert (row["source"], row["start"], row["end"]) == (header.source, header.start, header.end)
        assert (row["closed_at"], row["cut"], row["root"]) == (header.closed_at, header.cut, header.root)
        assert (row["lines"], tuple(row["ids"])) == (expected[batch].lines, expected[batch].ids)
    refused = sorted((row["ids"][0], row["reason"]) for row in rows if row["batch"] is None)
    assert refused == [(reject.rejected, reject.reason) for reject in rejects]


@given(seed=st.integers(0, 1 << 32), flush=st.booleans())
def test_p6_every_message_is_in_one_batch_or_refused_or_still_open(
    untidy: Untidy, rules: BatchConfig, seed: int, flush: bool
) -> None:
    messages = numbered(untidy(seed, 120))
    ids = [number for row in feed(messages, rules, 50, flush=flush).column("ids").to_pylist() for number in row]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {message.id for message in messages}
    assert not flush or len(ids) == len(messages)


def test_only_messages_of_open_batches_are_held(untidy: Untidy, rules: BatchConfig) -> None:
    messages = sorted(numbered(untidy(1, 5000, sources=1)), key=lambda m: (m.received_at, m.id))
    feeder, most = Feeder("station-0", rules), 0
    for start in range(0, len(messages), 100):
        for _ in feeder.feed(messages[start : start + 100]):
            pass
        most = max(most, feeder.waiting)
    assert most < 300


def test_messages_out_of_order_are_refused(rules: BatchConfig) -> None:
    first, second = (Message(b"", "k", "s", time, time, id=time) for time in (200, 100))
    with pytest.raises(PipelineInputError, match="not sorted by received_at"):
        list(batch_part([to_arrow([first]), to_arrow([second])], rules, 200, flush=True))


def test_large_outputs_come_in_several_parts(rules: BatchConfig) -> None:
    messages = [Message(bytes(200_000), "k", "s", time * 100, time * 100, id=time) for time in range(1, 61)]
    parts = list(batch_part([to_arrow(messages)], rules, 6000, flush=True))
    assert len(parts) > 1
    assert sum(part.num_rows for part in parts) == 60


def test_no_messages_give_no_rows(rules: BatchConfig) -> None:
    assert list(batch_part([], rules, 0, flush=True)) == []


def test_a_tick_is_in_no_batch_and_stands_in_no_batchs_way(rules: BatchConfig) -> None:
    records = [Message(b"1", key="a", source="p", event_time=5, received_at=6, id=1)]
    ticks = [Message(b"", source=TICK_SOURCE, event_time=time, received_at=time, id=time) for time in (7, 8)]
    rows = feed([*records, *ticks], rules, 10).to_pylist()
    assert [(row["ids"], row["reason"]) for row in rows] == [([7], "tick"), ([8], "tick"), ([1], None)]
