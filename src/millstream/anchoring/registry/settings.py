"""The parameters of a registry, with the names and defaults of the seed document where it has them."""

from __future__ import annotations

import msgspec

from millstream.anchoring.registry.operation_queue import OperationQueueSettings


class RegistrySettings(msgspec.Struct, frozen=True):
    """All durations in seconds.

    ``batch_writer_timeout`` (``batch-writer-timeout``) is the age at which the oldest operation has its batch cut;
    ``writer_monitor_interval`` how often that is looked at; ``max_operations`` cuts smaller batches than the protocol
    allows. Final operations are forgotten after ``operation_lifespan`` (``op-queue-operation-lifespan``), which is
    looked after each ``expiry_check_interval`` (``data-expiry-check-interval``). No more than ``max_open`` operations
    may be under way.
    """

    batch_writer_timeout: float = 60.0
    writer_monitor_interval: float = 1.0
    max_operations: int | None = None
    max_open: int = 1_000_000
    operation_lifespan: float = 24 * 3600.0
    expiry_check_interval: float = 60.0
    task_check_interval: float = 10.0
    queue: OperationQueueSettings = OperationQueueSettings()
