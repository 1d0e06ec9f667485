"""Pools of workers: each has its queues in an order, and every queue has a pool."""

from __future__ import annotations

import pytest

from millstream.mill.errors import UnknownPoolError
from millstream.mill.tasks import QueueName
from millstream.mill.worker_pools import ALL, POOLS, queues_of


def test_the_pools_of_the_original_have_its_queues_in_its_order() -> None:
    assert queues_of("audit", {})[0] == QueueName.AUDIT
    assert queues_of("duplication", {}) == (
        QueueName.DUPLICATION_HIGH, QueueName.DUPLICATION_LOW, QueueName.AUDIT, QueueName.BIT_INTEGRITY
    )  # fmt: skip
    assert queues_of("bits", {})[:2] == (QueueName.BIT_INTEGRITY, QueueName.AUDIT)
    assert queues_of("bit-report", {}) == (QueueName.BIT_REPORT,)


def test_every_queue_is_first_in_a_pool_or_worked_on_by_one() -> None:
    assert set(queues_of(ALL, {})) == set(QueueName)
    assert {name for pool, names in POOLS.items() if pool != ALL for name in names} == set(QueueName)
    for names in POOLS.values():
        if QueueName.DUPLICATION_HIGH in names:
            assert names.index(QueueName.DUPLICATION_HIGH) < names.index(QueueName.DUPLICATION_LOW)


def test_a_pool_of_the_settings_wins() -> None:
    assert queues_of("bits", {"bits": ("repair", "bit-integrity", "repair")}) == (
        QueueName.REPAIR, QueueName.BIT_INTEGRITY
    )  # fmt: skip


def test_an_unknown_pool_or_queue_is_refused_by_name() -> None:
    with pytest.raises(UnknownPoolError, match=r"no pool 'bit' \(there are: all, audit"):
        queues_of("bit", {})
    with pytest.raises(UnknownPoolError, match="names the queue 'bitz'"):
        queues_of("mine", {"mine": ("bitz",)})
