"""What a task of the batch job does, without Spark: the same batches as the plain rule over everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.batch_records import encode_batch
from millstream.batching import BatchConfig, Batcher, BoundBrokenError, Override, Rulebook
from millstream.batching.message_events import TICK_SOURCE, event_from_message
from millstream.core.message import Message, to_arrow
from millstream.pipeline.shard_shares import shares_of, write_share
from millstream.pipeline.tasks import shard_task
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA, ShardBatching, batch_part
from millstream.testing.batching_oracle import plain_batches

Untidy = Callable[..., list[Message]]


def numbered(messages: Sequence[Message]) -> list[Message]:
    return [msgspec.structs.replace(message, id=number) for number, message in enumerate(messages, 1)]


def shares(messages: Sequence[Message], chunk: int, *, whole: bool = True) -> Iterator[pa.RecordBatch]:
    """The shares of *messages* as Spark sorts those of one shard, each of *chunk* messages in order of receipt."""
    ordered = sorted(messages, key=lambda m: (m.received_at, m.id))
    for start in range(0, len(ordered), chunk):
        part = ordered[start : start + chunk]
        for shard, share in shares_of(to_arrow(part), 1, whole=whole):
            yield pa.RecordBatch.from_pydict(
                {"shard": [shard], "received_from": [part[0].received_at], "share": [write_share(share)]}
            )


def feed(
    messages: Sequence[Message], rules: BatchConfig | Rulebook, chunk: int, *, flush: bool = True, whole: bool = True
) -> pa.Table:
    """The output of one task that is given *messages* in shares of *chunk*, without the snapshot."""
    bound = max(message.received_at or 0 for message in messages)
    rulebook = Rulebook(rules) if isinstance(rules, BatchConfig) else rules
    parts = batch_part(shares(messages, chunk, whole=whole), rulebook, bound, flush=flush, whole=whole)
    rows = pa.Table.from_batches(parts, BATCH_SCHEMA)
    return rows.filter(rows["snapshot"].is_null())


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few messages, so that there are many."""
    monkeypatch.setattr(shard_task, "STEP_ROWS", 40)


@given(seed=st.integers(0, 1 << 32), chunk=st.sampled_from([1, 7, 100, 5000]), count=st.integers(1, 300))
def test_p5_the_batches_of_a_task_are_those_of_the_plain_rule(
    untidy: Untidy, rules: BatchConfig, seed: int, chunk: int, count: int
) -> None:
    messages = numbered(untidy(seed, count))
    by_id = {message.id: message for message in messages}
    bound = max(message.received_at or 0 for message in messages)
    batches, rejects = plain_batches(map(event_from_message, messages), rules, bound)
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


configs = st.builds(
    lambda window, cut, count, late, grace: BatchConfig(
        window, 20, conflict_cut=cut, max_count=count, late=late, grace=late and max(grace, window)
    ),
    st.integers(0, 60),
    st.sampled_from(["at_event", "midpoint"]),
    st.none() | st.integers(1, 6),
    st.sampled_from([None, "side", "amend"]),
    st.integers(0, 90),
)
overrides = st.lists(
    st.builds(Override, configs, st.sampled_from([None, "station-1"]), st.sampled_from(["key-1", "key-2"])),
    unique_by=lambda override: (override.source, override.key),
    max_size=2,
).map(tuple)


@given(
    rules=st.builds(Rulebook, configs, overrides),
    seed=st.integers(0, 1 << 32),
    chunk=st.sampled_from([7, 60, 500]),
    flush=st.booleans(),
)
def test_p5_a_task_gives_what_the_batcher_gives_under_any_rules(
    untidy: Untidy, rules: Rulebook, seed: int, chunk: int, flush: bool
) -> None:
    messages = numbered(untidy(seed, 150, sources=2, late=0.3))
    by_id = {message.id: message for message in messages}
    batcher = Batcher.of(rules)
    outcomes = [batcher.receive_many(map(event_from_message, messages))]
    outcomes.append(batcher.advance(max(message.received_at or 0 for message in messages)))
    outcomes += [batcher.flush()] if flush else []
    rows = feed(messages, rules, chunk, flush=flush).to_pylist()

    found = sorted(
        (row["batch"], row["kind"], row["closed_at"], row["cut"], tuple(row["amends"]), tuple(row["ids"]), row["lines"])
        for row in rows
        if row["batch"]
    )
    expected = sorted(
        (b.batch, b.kind, b.closed_at, b.cut, b.amends, b.events, encode_batch(b, [by_id[n] for n in b.events]).lines)
        for outcome in outcomes
        for b in outcome.batches
    )
    assert found == expected
    refused = sorted((row["ids"][0], row["reason"]) for row in rows if row["reason"])
    assert refused == sorted((reject.rejected, reject.reason) for outcome in outcomes for reject in outcome.rejects)


@given(seed=st.integers(0, 1 << 32), flush=st.booleans())
def test_p6_every_message_is_in_one_batch_or_refused_or_still_open(
    untidy: Untidy, rules: BatchConfig, seed: int, flush: bool
) -> None:
    messages = numbered(untidy(seed, 120))
    ids = [number for row in feed(messages, rules, 50, flush=flush).column("ids").to_pylist() for number in row]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {message.id for message in messages}
    assert not flush or len(ids) == len(messages)


@pytest.mark.parametrize("config", [BatchConfig(50, 20), BatchConfig(50, 20, late="amend", grace=60)], ids=str)
def test_only_messages_of_open_batches_are_held(untidy: Untidy, config: BatchConfig) -> None:
    messages = sorted(numbered(untidy(1, 5000, sources=1)), key=lambda m: (m.received_at, m.id))
    feeder, most = ShardBatching(Rulebook(config), whole=True), 0
    for start in range(0, len(messages), 100):
        part = messages[start : start + 100]
        for _ in feeder.step([pa.Table.from_batches([to_arrow(part)])], part[-1].received_at or 0):
            pass
        most = max(most, feeder.waiting)
    assert most < 300


def test_shares_that_come_in_another_order_than_that_of_their_receipt_are_refused(rules: BatchConfig) -> None:
    early, late = (
        [Message(b"", "k", "s", time + n, time + n, id=time + n) for n in range(50)] for time in (1000, 2000)
    )
    parts = [*shares(late, 50), *shares(late, 50), *shares(early, 50)]
    with pytest.raises(BoundBrokenError):
        list(batch_part(parts, Rulebook(rules), 3000, flush=True, whole=True))


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_open_is_given_as_a_snapshot_that_a_batcher_goes_on_from(
    untidy: Untidy, rules: BatchConfig, whole: bool
) -> None:
    messages = numbered(sorted(untidy(2, 400, sources=3), key=lambda m: m.received_at or 0))
    bound = messages[-1].received_at or 0
    parts = batch_part(shares(messages, 30, whole=whole), Rulebook(rules), bound, flush=False, whole=whole)
    rows = pa.Table.from_batches(parts, BATCH_SCHEMA).to_pylist()
    (snapshot,) = [row["snapshot"] for row in rows if row["snapshot"] is not None]
    rest = Batcher.restore(snapshot, rules).flush()
    expected, _ = plain_batches(map(event_from_message, messages), rules, bound)
    found = {row["batch"] for row in rows if row["batch"]} | {batch.batch for batch in rest.batches}
    assert found == {batch.batch for batch in expected}
    assert rest.batches


def test_shares_of_events_alone_give_the_same_batches_without_lines(untidy: Untidy, rules: BatchConfig) -> None:
    messages = numbered(untidy(3, 300))
    names = ["batch", "source", "closed_at", "cut", "ids"]
    whole, bare = (feed(messages, rules, 50, whole=whole) for whole in (True, False))
    assert bare["lines"].null_count == bare["root"].null_count == len(bare)
    batches = [table.filter(table["batch"].is_valid()).select(names).to_pylist() for table in (whole, bare)]
    assert sorted(batches[0], key=repr) == sorted(batches[1], key=repr)


def test_the_mode_faithful_takes_messages_in_order_of_receipt(untidy: Untidy) -> None:
    rules, messages = BatchConfig(50, 20, mode="faithful"), numbered(untidy(4, 200, sources=1))
    ordered = sorted(messages, key=lambda m: (m.received_at, m.id))
    batcher = Batcher.of(rules)
    outcomes = [batcher.receive_many(map(event_from_message, ordered)), batcher.advance(ordered[-1].received_at or 0)]
    expected = [batch.events for outcome in [*outcomes, batcher.flush()] for batch in outcome.batches]
    rows = feed(messages, rules, 1000).to_pylist()
    assert sorted(tuple(row["ids"]) for row in rows if row["batch"]) == sorted(expected)


def test_messages_with_headers_and_bytes_that_are_no_text_are_encoded_too(rules: BatchConfig) -> None:
    messages = [
        Message(b"\xff", "a", "s", 1, 1, id=1),
        Message(b'{"x": "\n"}', "b", "s", 2, 2, (("trace", b"\x00"),), 2),
        Message("ü\u2028".encode(), 'c"', "s", 3, 3, id=3),
    ]
    (batch,), _ = plain_batches(map(event_from_message, messages), rules, 3)
    (row,) = feed(messages, rules, 10).to_pylist()
    encoded = encode_batch(batch, messages)
    assert (row["lines"], row["root"]) == (encoded.lines, encoded.root)


def test_large_outputs_come_in_several_parts(rules: BatchConfig) -> None:
    messages = [Message(bytes(200_000), "k", "s", time * 100, time * 100, id=time) for time in range(1, 61)]
    parts = list(batch_part(shares(messages, 60), Rulebook(rules), 6000, flush=True, whole=True))
    assert len(parts) > 1
    assert sum(part.num_rows for part in parts) == 60


def test_no_messages_give_no_rows(rules: BatchConfig) -> None:
    assert list(batch_part([], Rulebook(rules), 0, flush=True, whole=True)) == []


def test_a_tick_is_in_no_batch_and_stands_in_no_batchs_way(rules: BatchConfig) -> None:
    records = [Message(b"1", key="a", source="p", event_time=5, received_at=6, id=1)]
    ticks = [Message(b"", source=TICK_SOURCE, event_time=time, received_at=time, id=time) for time in (7, 8)]
    rows = feed([*records, *ticks], rules, 10).to_pylist()
    assert [(row["ids"], row["reason"]) for row in rows] == [([7], "tick"), ([8], "tick"), ([1], None)]
