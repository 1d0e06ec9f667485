"""The section ``registry`` of the settings, and its parameters by the names and defaults of the seed document."""

from __future__ import annotations

import msgspec

from millstream.anchoring.sidetree.profile import ALGORITHMS, PATCH_ACTIONS, PROFILES, Profile
from millstream.core.amounts import Duration
from millstream.core.cid import CidForm
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section, SettingsError, require_time, seconds


class OperationQueueSettings(msgspec.Struct, frozen=True):
    """The parameters of the seed document, in seconds.

    ``pool`` is the number of subscribers on the broker (``op-queue-pool``), ``max_retries`` the maximum number of
    retries of an operation (``op-queue-max-retries``). The n-th retry waits ``retry_first × retry_factor^(n-1)``, at
    most ``retry_longest``. An instance without a heartbeat for ``task_expiration`` (``op-queue-task-expiration``) is
    dead; its operations are reposted, at most ``max_repost`` per run of the monitor, at the interval
    ``monitor_interval`` (``op-queue-task-monitor-interval``). ``visibility`` is the lease of a message from the broker.
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
        """How long an operation that was retried *retries* times waits for the next time."""
        return min(self.retry_longest, self.retry_first * self.retry_factor ** min(retries, 50))


class RegistryParameters(msgspec.Struct, frozen=True):
    """All durations in seconds.

    ``batch_writer_timeout`` (``batch-writer-timeout``) is the age of the oldest operation at which a batch is cut;
    ``writer_monitor_interval`` is the interval of this check (at least four times per timeout). ``max_operations``
    limits a batch further than the protocol. Ended operations are deleted after ``operation_lifespan``
    (``op-queue-operation-lifespan``), checked at the interval ``expiry_check_interval``
    (``data-expiry-check-interval``). At most ``max_open`` operations may be open, and ``max_open_per_did`` for one DID.

    For ``unpublished_operation_lifespan`` (``unpublished-operation-lifespan``; 0: never) after their acceptance,
    unanchored operations count for resolution; with ``apply_unpublished_operations`` they also change the document of
    anchored DIDs, as in Orb.
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


class FollowSettings(Section, frozen=True):
    """The registry that this one follows; only that one accepts operations. ``ledger`` is a file, or the URL of a node
    or of a file of entries. ``cas`` lists the locations of its files, tried in this order (see `millstream anchor
    observe`). The ledger is read at the interval ``interval``.
    """

    host_settings = frozenset(["ledger", "cas"])

    ledger: str = ""
    cas: tuple[str, ...] = ()
    interval: Duration = Duration(10 * MICROSECONDS)

    def __post_init__(self) -> None:
        if self.ledger and not self.cas:
            raise ValueError("ledger requires cas: give the locations of the files that the ledger names")
        require_time(self, "interval")


class RegistrySettings(Section, frozen=True):
    """The registry of identifiers. ``database`` stores its operations (``postgresql://user:password@host:port/name`` or
    ``mysql://…``, which several instances can share; empty: the node's database).

    ``profile`` names the rules of the network (docs/formats/sidetree.md#profiles): ``sidetree`` or ``orb``. ``method``
    replaces the DID method of the profile. ``patches`` allows further patch actions (``ietf-json-patch``), and
    ``algorithms`` further signature algorithms (``EdDSA``), which the reference implementation of Sidetree does not
    read. ``cid`` sets how batch files are named: ``raw``, ``unixfs-v1`` or ``unixfs-v0``. With ``follow`` this registry
    follows another one and accepts no operations.

    A batch is cut ``batch_writer_timeout`` after its oldest operation was accepted, or as soon as it is full; this is
    checked at the interval ``writer_monitor_interval`` (and at least four times per timeout). An instance that receives
    a notice of operations from the broker must queue them within ``op_queue_notice_visibility``; then another instance
    gets the notice. For ``unpublished_operation_lifespan`` after its acceptance (0: never) an unanchored operation
    counts for resolution: an unanchored DID resolves from such operations, an anchored one lists them in its metadata;
    with ``apply_unpublished_operations`` they also change its document. The page on registries
    (docs/registry.md#settings) explains every setting.
    """

    host_settings = frozenset(["op_queue_pool"])

    database: str = ""
    profile: str = "sidetree"
    method: str = ""
    patches: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    cid: CidForm = CidForm.RAW
    follow: FollowSettings = FollowSettings()
    batch_writer_timeout: Duration = Duration(60 * MICROSECONDS)
    writer_monitor_interval: Duration = Duration(MICROSECONDS)
    max_operations: int | None = None
    max_open: int = 1_000_000
    max_open_per_did: int = 1_000
    op_queue_pool: int = 5
    op_queue_notice_visibility: Duration = Duration(60 * MICROSECONDS)
    op_queue_max_retries: int = 30
    op_queue_retry_initial_interval: Duration = Duration(2 * MICROSECONDS)
    op_queue_retry_multiplier: float = 1.5
    op_queue_retry_max_interval: Duration = Duration(60 * MICROSECONDS)
    op_queue_task_monitor_interval: Duration = Duration(10 * MICROSECONDS)
    op_queue_task_expiration: Duration = Duration(60 * MICROSECONDS)
    op_queue_max_ops_to_repost: int = 10_000
    op_queue_operation_lifespan: Duration = Duration(24 * 3600 * MICROSECONDS)
    task_manager_check_interval: Duration = Duration(10 * MICROSECONDS)
    data_expiry_check_interval: Duration = Duration(60 * MICROSECONDS)
    unpublished_operation_lifespan: Duration = Duration(0)
    apply_unpublished_operations: bool = False

    def __post_init__(self) -> None:
        require_time(self, "writer_monitor_interval", "op_queue_notice_visibility")

    @property
    def parameters(self) -> RegistryParameters:
        """The same as the parameters of a registry, in seconds."""
        queue = OperationQueueSettings(
            pool=self.op_queue_pool,
            max_retries=self.op_queue_max_retries,
            retry_first=seconds(self.op_queue_retry_initial_interval),
            retry_factor=self.op_queue_retry_multiplier,
            retry_longest=seconds(self.op_queue_retry_max_interval),
            monitor_interval=seconds(self.op_queue_task_monitor_interval),
            task_expiration=seconds(self.op_queue_task_expiration),
            max_repost=self.op_queue_max_ops_to_repost,
            visibility=seconds(self.op_queue_notice_visibility),
        )
        return RegistryParameters(
            batch_writer_timeout=seconds(self.batch_writer_timeout),
            writer_monitor_interval=seconds(self.writer_monitor_interval),
            max_operations=self.max_operations,
            max_open=self.max_open,
            max_open_per_did=self.max_open_per_did,
            operation_lifespan=seconds(self.op_queue_operation_lifespan),
            expiry_check_interval=seconds(self.data_expiry_check_interval),
            task_check_interval=seconds(self.task_manager_check_interval),
            unpublished_operation_lifespan=seconds(self.unpublished_operation_lifespan),
            apply_unpublished_operations=self.apply_unpublished_operations,
            queue=queue,
        )

    @property
    def network(self) -> Profile:
        """The rules of the network. Raises :class:`SettingsError` for a profile or a patch that there is not."""
        if self.profile not in PROFILES:
            raise SettingsError(
                f"setting registry.profile: unknown profile {self.profile!r}; choose from {', '.join(PROFILES)}"
            )
        unknown = set(self.patches) - PATCH_ACTIONS
        if unknown:
            raise SettingsError(
                f"setting registry.patches: unknown patch action {min(unknown)!r}; choose from "
                f"{', '.join(sorted(PATCH_ACTIONS))}"
            )
        strange = set(self.algorithms) - ALGORITHMS
        if strange:
            raise SettingsError(
                f"setting registry.algorithms: unknown algorithm {min(strange)!r}; choose from "
                f"{', '.join(sorted(ALGORITHMS))}"
            )
        profile = PROFILES[self.profile]
        algorithms = profile.algorithms | set(self.algorithms)
        return msgspec.structs.replace(
            profile,
            method=self.method or profile.method,
            patches=profile.patches | set(self.patches),
            algorithms=algorithms,
            reference=profile.reference and algorithms == profile.algorithms,
            cid=self.cid,
        )
