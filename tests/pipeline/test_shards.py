"""A log as shares of shards, and how far triggers go: without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millstream.batching import BatchConfig, Batcher
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.errors import SnapshotError
from millstream.batching.message_events import event_from_message, make_tick
from millstream.batching.service_state import ServiceState, write_state
from millstream.batching.snapshot_split import join_snapshots, split_snapshot
from millstream.core.documents import FileDocument
from millstream.core.message import Message, to_arrow
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.output.checkpoint import read_progress
from millstream.pipeline.shard_shares import events_of, read_share, shard_of, shares_of, write_share
from millstream.pipeline.shard_source import SHARD_SCHEMA, ShardDataSource, ShardReadOptions, ShardStreamReader

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


@given(st.integers(0, 1 << 30), st.integers(1, 9), st.integers(1, 200))
def test_every_message_but_ticks_is_in_the_share_of_its_source(
    untidy: Untidy, seed: int, shards: int, count: int
) -> None:
    messages = [
        Message(m.body, m.key, m.source, m.event_time, m.received_at, id=n)
        for n, m in enumerate(untidy(seed, count), 1)
    ]
    tick = Message(b"", source=make_tick().source, event_time=9, received_at=9, id=10_000)
    rows = []
    for shard, share in shares_of(to_arrow([*messages, tick]), shards):
        found = events_of([read_share(write_share(share))])
        assert found.schema == EVENT_SCHEMA
        rows += [(shard, row) for row in found.to_pylist()]
    expected = [event_from_message(message) for message in messages]
    assert sorted(row["id"] for _, row in rows) == [event.id for event in expected]
    by_id = {event.id: event for event in expected}
    for shard, row in rows:
        event = by_id[row["id"]]
        assert row == {name: getattr(event, name) for name in EVENT_SCHEMA.names}
        assert shard == shard_of(event.source, shards)


def test_ticks_are_in_no_share_although_their_source_has_cuts() -> None:
    ticks = [Message(b"", source=make_tick().source, event_time=n, received_at=n, id=n) for n in range(1, 10)]
    assert list(shares_of(to_arrow(ticks), 4, cuts={make_tick().source: [3, 6]})) == []


def reader(url: str, **options: object) -> ShardStreamReader:
    given = {"store": url, "log": "untidy", "shards": 3} | options
    return ShardStreamReader(ShardReadOptions({name: str(value) for name, value in given.items()}))


def test_a_trigger_has_its_shares_and_a_tick_for_every_shard(log_url: str, untidy: Untidy, write_log: WriteLog) -> None:
    messages = write_log(log_url, "untidy", sorted(untidy(1, 300), key=lambda m: m.received_at or 0))
    stream = reader(log_url, partitionBytes=1)
    assert stream.initialOffset() == {"id": 0}
    parts = stream.partitions({"id": 100}, {"id": 250})
    rows = pa.Table.from_batches([batch for part in parts for batch in stream.read(part)], SHARD_SCHEMA).to_pylist()
    ticks = [row for row in rows if row["tick"]]
    assert [row["shard"] for row in ticks] == [0, 1, 2]
    assert {(row["first_id"], row["last_id"], row["received_to"]) for row in ticks} == {
        (101, 250, messages[249].received_at)
    }
    ids = [number for row in rows if not row["tick"] for number in read_share(row["share"])["id"].to_pylist()]
    assert sorted(ids) == list(range(101, 251))
    assert len(parts) > 2


def test_triggers_go_as_far_as_they_may(log_url: str, untidy: Untidy, write_log: WriteLog) -> None:
    count = len(write_log(log_url, "untidy", untidy(2, 300)))
    stream = reader(log_url, barrier=50, maxMessagesPerTrigger=120)
    assert stream.getDefaultReadLimit() == ReadMaxRows(120)
    assert stream.latestOffset({"id": 0}, ReadMaxRows(120))["id"] == 50
    assert stream.latestOffset({"id": 0}, ReadMaxRows(20))["id"] == 20
    assert stream.latestOffset({"id": 50}, ReadMaxRows(120))["id"] == 170
    assert stream.latestOffset({"id": 50}, ReadAllAvailable())["id"] == count
    assert stream.reportLatestOffset() == {"id": count}
    assert stream.latestOffset({"id": count}, ReadMaxRows(120)) == {"id": count}
    assert reader(log_url).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(log_url, to=80).latestOffset({"id": 0}, ReadAllAvailable())["id"] == 80


def test_an_offset_has_the_receive_time_of_its_message(log_url: str, untidy: Untidy, write_log: WriteLog) -> None:
    messages = write_log(log_url, "untidy", untidy(2, 30))
    stream = reader(log_url)
    offset = stream.latestOffset({"id": 0}, ReadMaxRows(20))
    assert offset == {"id": 20, "received_at": messages[19].received_at}
    assert stream.latestOffset(offset, ReadMaxRows(0)) == offset, "there is nothing new"


def test_available_now_ends_where_the_log_ended(log_url: str, untidy: Untidy, write_log: WriteLog) -> None:
    count = len(write_log(log_url, "untidy", untidy(3, 50)))
    stream = reader(log_url)
    stream.prepareForTriggerAvailableNow()
    write_log(log_url, "untidy", untidy(4, 50))
    assert stream.latestOffset({"id": 0}, ReadAllAvailable())["id"] == count
    assert stream.partitions({"id": count}, {"id": count}) == []


@pytest.mark.parametrize("available_now", [False, True])
def test_a_log_that_is_shorter_than_what_was_read_is_another_log(
    log_url: str, untidy: Untidy, write_log: WriteLog, available_now: bool
) -> None:
    end = len(write_log(log_url, "untidy", untidy(5, 20)))
    stream = reader(log_url)
    if available_now:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(PipelineInputError, match=rf"now ends at id {end}: .*durability=os.* from={end + 1} "):
        stream.latestOffset({"id": 1000}, ReadAllAvailable())


def test_the_first_trigger_brings_each_shard_its_part_of_the_state(
    tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages = write_log(log_url, "untidy", sorted(untidy(6, 300), key=lambda m: m.received_at or 0))
    batcher = Batcher(50, 20)
    batcher.receive_many([event_from_message(message) for message in messages[:100]])
    batcher.advance(messages[99].received_at or 0)
    write_state(FileDocument(tmp_path / "state"), ServiceState("untidy", "batches", 100, batcher.snapshot()))
    stream = reader(log_url, **{"from": 101, "state": tmp_path / "state", "output": "batches"})
    first, later = (
        [row for part in stream.partitions(*ends) for batch in stream.read(part) for row in batch.to_pylist()]
        for ends in [({"id": 100}, {"id": 150}), ({"id": 150}, {"id": 200})]
    )
    seeds = [row["seed"] for row in first if row["tick"]]
    assert join_snapshots(seeds) == batcher.snapshot()
    assert [row["seed"] for row in later if row["tick"]] == [None] * 3


def test_parts_of_a_snapshot_that_do_not_belong_together_are_refused() -> None:
    one, other = Batcher(50, 20), Batcher(50, 20)
    other.advance(5)
    with pytest.raises(SnapshotError, match="different times or rules"):
        join_snapshots([one.snapshot(), other.snapshot()])
    with pytest.raises(SnapshotError, match="different times or rules"):
        join_snapshots([one.snapshot(), Batcher(60, 20).snapshot()])


@given(
    st.integers(0, 1 << 30),
    st.integers(1, 5),
    st.sampled_from([{}, {"late": "side", "grace": 30}, {"late": "amend", "grace": 60}]),
)
def test_a_snapshot_in_parts_is_the_same_snapshot(
    untidy: Untidy, seed: int, parts: int, policy: dict[str, object]
) -> None:
    batcher = Batcher.of(BatchConfig(50, 20, **policy))  # type: ignore[arg-type]
    messages = sorted(untidy(seed, 60), key=lambda m: m.received_at or 0)
    batcher.receive_many([event_from_message(message) for message in messages])
    batcher.advance(messages[-1].received_at or 0)
    split = split_snapshot(batcher.snapshot(), lambda source: shard_of(source, parts), parts)
    assert len(split) == parts
    assert join_snapshots(split) == batcher.snapshot()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shards": "0"}, "shards"),
        ({"state": "x"}, "output"),
        ({"maxMessagesPerTrigger": "none"}, "maxMessagesPerTrigger"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(PipelineInputError, match=named):
        ShardDataSource({"store": "memory://", "log": "x"} | options)


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == (0, 0, None)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\nnonsense")
    with pytest.raises(
        PipelineError, match=r"cannot read .*offsets/0 \(its last line .* delete the folder .* continues"
    ):
        read_progress(tmp_path)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "7").touch()
    with pytest.raises(PipelineError, match=r"offsets/7 \(No such file or directory\): delete the folder"):
        read_progress(tmp_path)
    (tmp_path / "offsets" / "7").mkdir()
    with pytest.raises(PipelineError, match=r"offsets/7 \(Is a directory\): check the permissions of this file"):
        read_progress(tmp_path)


def test_the_digest_is_that_of_the_body() -> None:
    (_, share) = next(iter(shares_of(to_arrow([Message(b"x", "k", "s", 1, 1, id=1)]), 1)))
    assert events_of([read_share(write_share(share))])["digest"].to_pylist() == [hashlib.sha256(b"x").hexdigest()]
