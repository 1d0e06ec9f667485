"""Records arrive in an order that the seed alone decides."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millstream.core.message import MESSAGE_SCHEMA
from millstream.demo.delivery import DeliveryModel, deliver, with_receive_times

COUNT = 20_000
DELIVERY = DeliveryModel(max_delay=60_000, late_share=0.1, twice_share=0.05, seed=1)


@pytest.fixture(scope="module")
def records() -> pa.Table:
    return pa.table(
        {
            "source": pa.array(["s"] * COUNT),
            "key": pa.array([f"k{n % 7}" for n in range(COUNT)]),
            "event_time": pa.array(np.arange(COUNT, dtype=np.int64) * 1000),
            "body": pa.array([b"%d" % n for n in range(COUNT)]),
        }
    )


@pytest.fixture(scope="module")
def delivered(records: pa.Table) -> pa.Table:
    return deliver(records, DELIVERY)


def test_messages_come_in_order_of_arrival(delivered: pa.Table) -> None:
    assert delivered.schema == MESSAGE_SCHEMA
    assert np.all(np.diff(delivered.column("received_at").to_numpy()) >= 0)


def test_the_same_seed_gives_the_same_messages_and_another_seed_others(records: pa.Table, delivered: pa.Table) -> None:
    assert deliver(records, DELIVERY).equals(delivered)
    assert not deliver(records, msgspec.structs.replace(DELIVERY, seed=2)).equals(delivered)


def test_every_record_arrives_and_the_stated_shares_are_late_or_come_twice(
    records: pa.Table, delivered: pa.Table
) -> None:
    bodies = delivered.column("body").to_pylist()
    assert set(bodies) == set(records.column("body").to_pylist())
    delays = delivered.column("received_at").to_numpy() - delivered.column("event_time").to_numpy()
    assert delays.min() >= 0
    assert (len(delivered) - COUNT) / COUNT == pytest.approx(0.05, abs=0.01)
    assert (delays > DELIVERY.max_delay).sum() / COUNT == pytest.approx(0.1, abs=0.01)


def test_records_that_know_their_receive_time_keep_it(records: pa.Table) -> None:
    records = records.slice(0, 3).append_column("received_at", pa.array([30, 10, 20], pa.int64()))
    messages = with_receive_times(records)
    assert messages.column("received_at").to_pylist() == [10, 20, 30]
    assert messages.column("body").to_pylist() == [b"1", b"2", b"0"]
