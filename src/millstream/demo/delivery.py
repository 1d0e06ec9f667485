"""The arrival times of the demo's records: each after a seeded delay, some too late, some twice.

The order of arrival, and with it every id and every batch, is a function of the records and the seed alone.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.message import MESSAGE_SCHEMA


class DeliveryModel(msgspec.Struct, frozen=True):
    """How records travel: ``max_delay`` in microseconds; the shares of records that come later than that and that
    come twice; the seed that draws them."""

    max_delay: int
    late_share: float = 0.02
    twice_share: float = 0.01
    seed: int = 2013


def deliver(records: pa.Table, delivery: DeliveryModel) -> pa.Table:
    """*records* (``source``, ``key``, ``event_time``, ``body``) as messages of MESSAGE_SCHEMA, in order of arrival.

    The column ``id`` is 0 throughout: the log gives ids.
    """
    draw = np.random.Generator(np.random.PCG64(delivery.seed))
    count = len(records)
    delays = _within(draw, count, delivery.max_delay)
    late = draw.random(count) < delivery.late_share
    delays[late] = delivery.max_delay + 1 + _within(draw, int(late.sum()), 3 * delivery.max_delay)
    twice = np.flatnonzero(draw.random(count) < delivery.twice_share)
    rows = np.concatenate([np.arange(count), twice])
    delays = np.concatenate([delays, _within(draw, len(twice), delivery.max_delay)])
    received = records.column("event_time").to_numpy()[rows] + delays
    order = np.argsort(received, kind="stable")
    return _messages(records.take(pa.array(rows[order])), received[order])


def with_receive_times(records: pa.Table) -> pa.Table:
    """*records* that know their own ``received_at``, as messages in order of arrival."""
    ordered = records.sort_by([("received_at", "ascending")])
    return _messages(ordered, ordered.column("received_at").to_numpy())


def _within(draw: np.random.Generator, count: int, longest: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Delays from 0 to *longest*, most of them short."""
    return (draw.random(count) ** 2 * longest).astype(np.int64)


def _messages(records: pa.Table, received: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    count = len(records)
    headers = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], MESSAGE_SCHEMA.field("headers").type.value_type)
    )
    columns = {
        "id": pa.array(np.zeros(count, np.int64)),
        "event_time": records.column("event_time"),
        "received_at": pa.array(received),
        "source": records.column("source"),
        "key": records.column("key"),
        "headers": headers,
        "body": pc.cast(records.column("body"), pa.binary()),
    }
    return pa.table(columns).cast(MESSAGE_SCHEMA).combine_chunks()
