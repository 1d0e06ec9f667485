"""The parameters of a registry, with the names and defaults of the seed document where it has them."""

from __future__ import annotations

import msgspec


class OperationQueueSettings(msgspec.Struct, frozen=True):
    """The parameters of the seed document, in seconds.

    ``pool`` is the number of subscribers on the broker (``op-queue-pool``), ``max_retries`` how often an operation is
    tried again (``op-queue-max-retries``); the n-th retry waits ``retry_first × retry_factor^(n-1)``, at most
    ``retry_longest``. An instance that gave no sign for ``task_expiration`` (``op-queue-task-expiration``) is dead; its
    operations are reposted, at most ``max_repost`` a run of the monitor, which runs each ``monitor_interval``
    (``op-queue-task-monitor-interval``). ``visibility`` is how long a broker's message is hidden once it is taken.
    """

    pool: int = 5
    max_retries: int = 30
    retry_first: float = 2.0
    retry_factor: float = 1.5
    retry_longest: float = 60.0
    monitor_interval: float = 10.0
    task_expiration: float = 60.0
    max_repost: int = 10_000
    visibility: float = 60.0

    def delay(self, retries: int) -> float:
        """How long an operation that was tried again *retries* times waits for the next time."""
        return min(self.retry_longest, self.retry_first * self.retry_factor ** min(retries, 50))


class RegistryParameters(msgspec.Struct, frozen=True):
    """All durations in seconds.

    ``batch_writer_timeout`` (``batch-writer-timeout``) is the age at which the oldest operation has its batch cut;
    ``writer_monitor_interval`` how often that is looked at, which is at least four times a timeout;
    ``max_operations`` cuts smaller batches than the protocol allows. Final operations are
    forgotten after ``operation_lifespan`` (``op-queue-operation-lifespan``), which is looked after each
    ``expiry_check_interval`` (``data-expiry-check-interval``). No more than ``max_open`` operations
    may be under way, and ``max_open_per_did`` on one DID.

    Operations that are not anchored yet count for resolution until ``unpublished_operation_lifespan``
    (``unpublished-operation-lifespan``) after they were accepted, 0: not at all; with ``apply_unpublished_operations``
    they change the document of anchored DIDs too, as in Orb.
    """

    batch_writer_timeout: float = 60.0
    writer_monitor_interval: float = 1.0
    max_operations: int | None = None
    max_open: int = 1_000_000
    max_open_per_did: int = 1_000
    operation_lifespan: float = 24 * 3600.0
    expiry_check_interval: float = 60.0
    task_check_interval: float = 10.0
    unpublished_operation_lifespan: float = 0.0
    apply_unpublished_operations: bool = False
    queue: OperationQueueSettings = OperationQueueSettings()
