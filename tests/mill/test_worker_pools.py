"""Pools of workers: each has its queues in an order, and every queue has a pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.mill.errors import UnknownPoolError
from millstream.mill.tasks import BitCheck, QueueName, decode_task, encode_task
from millstream.mill.workers.pools import ALL, POOLS, queues_of
from millstream.node import Node
from millstream.settings import load_settings


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
    with pytest.raises(UnknownPoolError, match=r"unknown pool 'bit': name one of the known pools \(all, audit"):
        queues_of("bit", {})
    with pytest.raises(UnknownPoolError, match="names the unknown queue 'bitz'"):
        queues_of("mine", {"mine": ("bitz",)})


def test_every_queue_of_the_mill_is_there_by_its_name(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path / "node")})
    with Node.open(settings, create=True) as node:
        for name in QueueName:
            queue = node.queues.open(name)
            queue.put([encode_task(BitCheck("1", "s", name.value))])
            (lease,) = queue.lease(10, visibility=60)
            assert decode_task(lease.body) == BitCheck("1", "s", name.value)
            queue.dead_letter(lease, cause="drill")
            assert (queue.depth().open, queue.dead()[0].cause) == (0, "drill")
