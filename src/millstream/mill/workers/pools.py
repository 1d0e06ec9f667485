"""Pools of workers: which queues one works on, and in which order (reference mill §1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.mill.errors import UnknownPoolError
from millstream.mill.tasks import QueueName

ALL = "all"
"""The pool that works on every queue, for an installation of one process."""

POOLS: Mapping[str, tuple[QueueName, ...]] = {
    "audit": (
        QueueName.AUDIT,
        QueueName.STORAGE_STATISTICS,
        QueueName.DUPLICATION_HIGH,
        QueueName.DUPLICATION_LOW,
    ),
    "bits": (
        QueueName.BIT_INTEGRITY,
        QueueName.AUDIT,
        QueueName.DUPLICATION_HIGH,
        QueueName.DUPLICATION_LOW,
    ),
    "duplication": (
        QueueName.DUPLICATION_HIGH,
        QueueName.DUPLICATION_LOW,
        QueueName.AUDIT,
        QueueName.BIT_INTEGRITY,
    ),
    "repair": (QueueName.REPAIR, QueueName.BIT_ERROR),
    "bit-report": (QueueName.BIT_REPORT,),
    "statistics": (QueueName.STORAGE_STATISTICS,),
    ALL: (
        QueueName.AUDIT,
        QueueName.DUPLICATION_HIGH,
        QueueName.REPAIR,
        QueueName.BIT_ERROR,
        QueueName.BIT_REPORT,
        QueueName.STORAGE_STATISTICS,
        QueueName.DUPLICATION_LOW,
        QueueName.BIT_INTEGRITY,
    ),
}
"""The pools of the original, one for repairs, which it had not, and one for everything. What is left of a pool's own
queue when that is empty goes to the others': a lower queue is worked on by several pools."""


def queues_of(pool: str, own: Mapping[str, Sequence[str]]) -> tuple[QueueName, ...]:
    """The queues of the pool of that name, the first comes first; a pool of *own* wins over one that is built in.

    Raises :class:`UnknownPoolError` for another name, and for a queue that there is not.
    """
    names = own.get(pool, POOLS.get(pool))
    if names is None:
        known = ", ".join(sorted({*POOLS, *own}))
        raise UnknownPoolError(
            f"unknown pool {pool!r}: name one of the known pools ({known}), or add it to the setting mill.pools"
        )
    for name in names:
        if name not in set(QueueName):
            raise UnknownPoolError(
                f"setting mill.pools: pool {pool!r} names the unknown queue {name!r}: use {', '.join(QueueName)}"
            )
    return tuple(dict.fromkeys(map(QueueName, names)))
