"""The messages of a batch log are the same bytes, whether they are made one by one or as columns."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import EventBatch, Reject
from millstream.batching.batch_log import output_messages, output_rows
from millstream.batching.column_engines import ClosedTables, batch_table
from millstream.batching.columns import REJECT_SCHEMA
from millstream.batching.json_lines import write_line
from millstream.core.message import Message
from millstream.log import LogSpec, open_store

times = st.integers(-(2**60), 2**60)
batches = st.lists(
    st.builds(
        EventBatch,
        batch=st.text("0123456789abcdef", min_size=64, max_size=64),
        source=st.text(max_size=6),
        start=times,
        end=times,
        closed_at=st.none() | times,
        cut=st.sampled_from(["window", "conflict", "size", "flush"]),
        events=st.lists(st.integers(1, 2**62), min_size=1, max_size=5).map(tuple),
        kind=st.sampled_from(["batch", "side", "amendment"]),
        amends=st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), max_size=2).map(tuple),
    ).map(lambda batch: batch if batch.kind == "amendment" else msgspec.structs.replace(batch, amends=())),
    max_size=5,
)
rejects = st.lists(
    st.builds(Reject, st.integers(1, 2**62), st.sampled_from(["late", "future", "duplicate"])), max_size=5
)


def output_message(item: EventBatch | Reject) -> Message:
    """*item* as ``docs/formats/batch-log.md`` says it."""
    body = write_line(item).rstrip(b"\n")
    if isinstance(item, EventBatch):
        return Message(body, item.batch, item.source, item.start, headers=(("kind", item.kind.encode()),))
    return Message(body, headers=(("kind", b"reject"),))


@given(batches, rejects)
def test_columns_give_the_messages_that_single_batches_give(made: list[EventBatch], refused: list[Reject]) -> None:
    table = pa.table(
        [[reject.rejected for reject in refused], [reject.reason for reject in refused]], schema=REJECT_SCHEMA
    )
    messages = output_messages([output_rows(ClosedTables(batch_table(made), table))])
    with open_store("memory://") as store:
        log = store.log(LogSpec("batches"))
        with log.writer() as writer:
            writer.append(messages)
        written = [message for batch in log.read() for message in batch]
    unstamped = [msgspec.structs.replace(message, id=0, received_at=None) for message in written]
    expected = [output_message(item) for item in [*made, *refused]]
    undated = [msgspec.structs.replace(m, event_time=None) if not m.key else m for m in unstamped]
    assert sorted(undated, key=repr) == sorted(expected, key=repr)


def test_batches_come_by_closing_time_and_source_and_rejects_last() -> None:
    made = [
        EventBatch("a" * 64, source, 5, 5, closed, "window", (1,)) for source, closed in [("b", 9), ("a", 9), ("c", 1)]
    ]
    table = pa.table([[7], ["late"]], schema=REJECT_SCHEMA)
    messages = output_messages([output_rows(ClosedTables(batch_table(made), table))])
    assert messages.column("source").to_pylist() == ["c", "a", "b", ""]


def test_nothing_gives_no_messages() -> None:
    assert output_messages([]).num_rows == 0
