"""The sections of the settings: what there is to be told, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from millstream.anchoring.registry.settings import OperationQueueSettings, RegistryParameters
from millstream.anchoring.sidetree.profile import ALGORITHMS, PATCH_ACTIONS, PROFILES, Profile
from millstream.batching.config import BatchConfig, ConflictCut, LatePolicy
from millstream.batching.rulebook import OVERRIDABLE, Rulebook, overrides_of
from millstream.console_settings import ConsoleSettings
from millstream.core.amounts import Duration, parse_duration
from millstream.core.cid import CidForm
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.log.upkeep.rules import LogRule
from millstream.messaging.broker.settings import BrokerSettings
from millstream.settings.serving import HttpSettings, LoggingSettings, ServeSettings

DEFAULT_DATA = "./millstream-data"
PRIMARY_URL = "file://{data}/stores/primary?mount=cas:cas://{data}/cas"
"""The first store of a node: a local folder that also shows the content-addressed files as its space ``cas``."""


class SettingsError(InputError):
    """A setting cannot be used as it is."""


class NerveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue in the document's layout: where each of its ``hosts`` keeps it (see docs/formats/nerve-layout.md)."""

    hosts: Mapping[str, Mapping[str, int | str]]
    user: str = "root"
    password_file: str = ""


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message logs. ``store`` is the URL of the log store; empty means ``log.db`` in the data folder.

    ``nerve:NAME@HOST`` is the queue NAME of ``nerve`` on one of its hosts. Of ``rules`` the first whose ``log`` fits
    the name of a log is kept with that log; every ``upkeep`` (0: never) `millstream serve` moves and trims what the
    rules kept with logs ask for.
    """

    store: str = ""
    nerve: Mapping[str, NerveSettings] = msgspec.field(default_factory=dict)
    rules: tuple[LogRule, ...] = ()
    upkeep: Duration = Duration(60 * MICROSECONDS)


class BatchingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How messages become batches (see ``millstream batch --help``). Without ``leap`` it equals ``max_delay``.

    A batch holds at most ``max_count`` messages and ``max_bytes`` bytes of their bodies; without them there is no cap.
    ``late`` says what becomes of late messages, and needs ``grace`` where that is not ``reject``. Each table of
    ``override`` has ``source`` or ``key`` or both, and what is different there.
    """

    window: Duration = Duration(30 * 60 * MICROSECONDS)
    max_delay: Duration = Duration(20 * 60 * MICROSECONDS)
    leap: Duration | None = None
    conflict_cut: ConflictCut = "at_event"
    max_count: int | None = None
    max_bytes: int | None = None
    late: LatePolicy = "reject"
    grace: Duration | None = None
    override: Sequence[Mapping[str, Any]] = ()

    @property
    def rules(self) -> Rulebook:
        """The rules of all sources and keys, in microseconds.

        Raises :class:`~millstream.batching.ConfigError` where they contradict themselves.
        """
        given = {name: getattr(self, name) for name in OVERRIDABLE}
        return Rulebook(BatchConfig(**given), overrides_of(self.override, given))


class AnchoringSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How batches are anchored: at most ``max_batches`` an anchor, in batch files of at most ``file_bytes`` bytes.

    ``cas`` is the URL of the storage provider whose space ``cas`` holds the files (``s3://…``); empty means the folder
    ``cas`` in the data folder.
    """

    max_batches: int = 10_000
    file_bytes: int = 4_000_000
    cas: str = ""


class FollowSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The registry whose ledger this one follows, and which is the one that takes operations. ``ledger`` is a file, or
    the URL of a node or of a file of entries; ``cas`` are the places of its files, asked in this order (see
    `millstream anchor observe`). It is read again after each ``interval``.
    """

    ledger: str = ""
    cas: tuple[str, ...] = ()
    interval: Duration = Duration(10 * MICROSECONDS)

    def __post_init__(self) -> None:
        if self.ledger and not self.cas:
            raise ValueError("ledger needs cas: the places of the files that the ledger names")
        if self.interval <= 0:
            raise ValueError("interval must be longer than 0 s")


class RegistrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The registry of identifiers. Its operations lie in ``database`` (``mysql://user:password@host:port/name``, to be
    shared by several instances), or in the node's own.

    ``profile`` is ``sidetree`` or ``orb``; ``method`` replaces the DID method of that, ``patches`` are actions that are
    allowed beside its own (``ietf-json-patch``), ``algorithms`` are signature algorithms beside its own (``EdDSA``),
    which the reference implementation of Sidetree does not read, and ``cid`` is how batch files are named: ``raw``,
    ``unixfs-v1`` or ``unixfs-v0``. With ``follow`` the registry of somebody else is read into this one, which then
    takes no operations. A batch is cut ``batch_writer_timeout`` after its oldest operation was accepted, or as soon as
    it is full, which is looked at every ``writer_monitor_interval`` (and at least four times a timeout). An instance
    that takes a notice of operations from the broker has ``op_queue_notice_visibility`` to put them into its queue,
    before another instance gets the notice. An operation that is not anchored yet counts for resolution until
    ``unpublished_operation_lifespan`` after it was accepted (0: not at all): a DID that is not anchored resolves from
    such operations, an anchored one lists them in its metadata; with ``apply_unpublished_operations`` they change its
    document as well. The others are the parameters of :class:`millstream.anchoring.registry.RegistryParameters`.
    """

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
        _require_time(self, "writer_monitor_interval", "op_queue_notice_visibility")

    @property
    def parameters(self) -> RegistryParameters:
        """The same as the parameters of a registry, in seconds."""
        queue = OperationQueueSettings(
            pool=self.op_queue_pool,
            max_retries=self.op_queue_max_retries,
            retry_first=_seconds(self.op_queue_retry_initial_interval),
            retry_factor=self.op_queue_retry_multiplier,
            retry_longest=_seconds(self.op_queue_retry_max_interval),
            monitor_interval=_seconds(self.op_queue_task_monitor_interval),
            task_expiration=_seconds(self.op_queue_task_expiration),
            max_repost=self.op_queue_max_ops_to_repost,
            visibility=_seconds(self.op_queue_notice_visibility),
        )
        return RegistryParameters(
            batch_writer_timeout=_seconds(self.batch_writer_timeout),
            writer_monitor_interval=_seconds(self.writer_monitor_interval),
            max_operations=self.max_operations,
            max_open=self.max_open,
            max_open_per_did=self.max_open_per_did,
            operation_lifespan=_seconds(self.op_queue_operation_lifespan),
            expiry_check_interval=_seconds(self.data_expiry_check_interval),
            task_check_interval=_seconds(self.task_manager_check_interval),
            unpublished_operation_lifespan=_seconds(self.unpublished_operation_lifespan),
            apply_unpublished_operations=self.apply_unpublished_operations,
            queue=queue,
        )

    @property
    def network(self) -> Profile:
        """The rules of the network. Raises :class:`SettingsError` for a profile or a patch that there is not."""
        if self.profile not in PROFILES:
            raise SettingsError(f"setting registry.profile: {self.profile!r} is none of {', '.join(PROFILES)}")
        unknown = set(self.patches) - PATCH_ACTIONS
        if unknown:
            raise SettingsError(
                f"setting registry.patches: {min(unknown)!r} is none of {', '.join(sorted(PATCH_ACTIONS))}"
            )
        strange = set(self.algorithms) - ALGORITHMS
        if strange:
            raise SettingsError(
                f"setting registry.algorithms: {min(strange)!r} is none of {', '.join(sorted(ALGORITHMS))}"
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


def _seconds(duration: Duration) -> float:
    return duration / MICROSECONDS


def _require_time(section: msgspec.Struct, *names: str) -> None:
    """Raise ValueError where one of the lengths of time *names* of *section* is 0."""
    for name in names:
        if not getattr(section, name):
            raise ValueError(f"{name} is 0: give it a length of time, such as 1s")  # the loader says where


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work queues. They lie on logs of the node; with ``broker`` their notices travel over RabbitMQ
    (``amqp://user:password@host:port/vhost``) or RocketMQ 5 (``rocketmq://host:port``, `millstream serve` too), and
    their tasks lie in ``database`` (``mysql://…``), or in the node's own.

    The others are for RabbitMQ. Each queue has one connection that receives, and up to ``publisher_pool_size`` that
    send at the same time; they are opened when they are needed. A broker that cannot be reached is called again after
    ``reconnect_initial_interval``, then after twice as long, up to ``reconnect_max_interval``, for as long as it takes;
    meanwhile work goes on from the database.
    """

    broker: str = ""
    database: str = ""
    publisher_pool_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    reconnect_initial_interval: Duration = parse_duration("200ms")
    reconnect_max_interval: Duration = parse_duration("10s")

    def __post_init__(self) -> None:
        _require_time(self, "reconnect_initial_interval", "reconnect_max_interval")


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One storage provider. ``{data}`` in its URL stands for the node's data folder.

    A URL holds no secret: one of S3 says which profile, or which environment variables, hold its credentials. With
    ``requests=RATE`` in its query no more than so many requests a second go to the store, of a process of the node, and
    of all tasks of a job on Spark together. With
    ``audited`` every change that is made through the node is written to the audit log, and duplicated at once.
    `millstream mill statistics` says when a store holds more than ``most_bytes`` (0: any number).
    """

    url: str
    audited: bool = False
    most_bytes: int = 0


class AlarmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told when a queue has dead letters, more than ``most`` tasks, or one that has been ready for more than
    ``longest``, while `millstream mill work` runs.

    ``webhook`` is a URL, ``command`` a program with its arguments (it reads JSON), ``mail_to`` are addresses that get
    mail from ``mail_from`` through the server ``smtp_host``.
    """

    most: int = 1_000_000
    longest: Duration = Duration(24 * 3600 * MICROSECONDS)
    webhook: str = ""
    command: tuple[str, ...] = ()
    mail_to: tuple[str, ...] = ()
    mail_from: str = "millstream@localhost"
    smtp_host: str = "localhost"
    smtp_port: int = 25


TimeOfDay = Annotated[str, msgspec.Meta(pattern="^(([01][0-9]|2[0-3]):[0-5][0-9])?$")]


class ProduceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The looping producers. A loop over every space begins each ``…_frequency`` (0 switches new ones off); a run ends
    when its queue has ``…_most`` tasks. Producers that are not called by cron look again after ``…_every``.

    With ``only_differences`` what is the same at both ends is not put on the queue; what was read and found good in the
    last ``bits_skip`` is not checked again (0: everything is). Spaces are counted from ``statistics_start``, such as
    ``"02:30"`` (UTC), on, or at any time.
    """

    duplication_frequency: Duration = parse_duration("30d")
    duplication_most: int = 10_000
    duplication_every: Duration = parse_duration("10m")
    only_differences: bool = False
    bits_frequency: Duration = parse_duration("30d")
    bits_most: int = 10_000
    bits_every: Duration = parse_duration("7m")
    bits_skip: Duration = parse_duration("0s")
    statistics_frequency: Duration = parse_duration("1d")
    statistics_most: int = 10_000
    statistics_every: Duration = parse_duration("1h")
    statistics_start: TimeOfDay = ""
    audit_log_every: Duration = parse_duration("1d")

    @property
    def statistics_start_time(self) -> int | None:
        """Microseconds from midnight (UTC) to ``statistics_start``; None where there is none."""
        hours, colon, minutes = self.statistics_start.partition(":")
        return (int(hours) * 60 + int(minutes)) * 60 * MICROSECONDS if colon else None


class BrakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Change guard: the share of a space's copies that may be deleted, or replaced by other bytes, within ``window``
    before a person is asked; ``least`` of them may in any case. An approval is good for ``approval``.
    """

    deletes: float = 0.05
    changes: float = 0.25
    least: int = 100
    window: Duration = parse_duration("24h")
    approval: Duration = parse_duration("7d")


class MillSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bulk tasks. ``policies`` is the folder of the policy files, or ``STORE:SPACE`` for a space of a store.

    Empty means the folder ``policies`` in the data folder.
    ``audit_log`` is the ``STORE:SPACE`` to which the audit log is exported; without it, it is not.
    ``processes`` do the file work of many small items in local folders, beside the one that has queues and tables
    (without it as many as there are processors, four at most, and none on a machine of one; 0 for none): they are
    started when there is enough to do. ``visibility`` is how long a task is hidden once a worker has it; leases are
    extended while it works. ``pools`` are lists of queues, the first comes first, in addition to (or in the place of)
    those that are built in.
    """

    account: str = "local"
    policies: str = ""
    audit_log: str = ""
    workers: int = 8
    processes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    alarms: AlarmSettings = AlarmSettings()
    produce: ProduceSettings = ProduceSettings()
    brake: BrakeSettings = BrakeSettings()
    pools: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    visibility: Duration = Duration(60 * MICROSECONDS)


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spark. ``driver_memory`` is the Java heap; ``java`` names a Java home and is found by itself when empty.

    ``quick`` keeps Java to its fast compiler: half the start-up, right for jobs of minutes, wrong for jobs of hours.
    What jobs leave in the folder ``jobs`` is kept for ``keep_jobs`` after it was last used. ``confs`` are settings of
    Spark by their names (``"spark.executor.memory" = "4g"``), and win over ours.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    java: str = ""
    quick: bool = True
    confs: Mapping[str, str] = msgspec.field(default_factory=dict)
    keep_jobs: Duration = Duration(30 * 24 * 3600 * MICROSECONDS)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a node is told. ``data`` is its folder; ``stores`` are its storage providers by id."""

    data: str = DEFAULT_DATA
    log: LogSettings = LogSettings()
    batching: BatchingSettings = BatchingSettings()
    anchoring: AnchoringSettings = AnchoringSettings()
    registry: RegistrySettings = RegistrySettings()
    queue: QueueSettings = QueueSettings()
    broker: BrokerSettings = BrokerSettings()
    stores: Mapping[str, StoreSettings] = msgspec.field(default_factory=dict)
    mill: MillSettings = MillSettings()
    pipeline: PipelineSettings = PipelineSettings()
    console: ConsoleSettings = ConsoleSettings()
    serve: ServeSettings = ServeSettings()
    http: HttpSettings = HttpSettings()
    logging: LoggingSettings = LoggingSettings()

    @property
    def folder(self) -> Path:
        """The data folder, absolute."""
        return Path(self.data).expanduser().absolute()

    @property
    def log_url(self) -> str:
        """The URL of the log store. Raises :class:`SettingsError`, :class:`~millstream.log.LogInputError`."""
        if self.log.store.startswith("nerve:"):
            return _nerve_url(self.log)
        return self.log.store or f"sqlite:///{self.folder / 'log.db'}"

    @property
    def store_urls(self) -> dict[str, str]:
        """The storage providers by id; without any configured, the one at :data:`PRIMARY_URL`."""
        return {name: _with_folder(url, self.folder) for name, url in self._store_urls.items()}

    def owns(self, store: str) -> bool:
        """Whether *store* is the node's own: its URL is written with ``{data}``, so that its folder may be made."""
        return "{data}" in self._store_urls.get(store, "").partition("?")[0]

    @property
    def _store_urls(self) -> dict[str, str]:
        return {name: store.url for name, store in self.stores.items()} or {"primary": PRIMARY_URL}

    @property
    def policy_space(self) -> tuple[str, str] | None:
        """The store and the space where the duplication policy files lie; None where they are in a folder."""
        store, colon, space = self.mill.policies.partition(":")
        return (store, space) if colon and store in self.store_urls else None

    @property
    def audit_log_space(self) -> tuple[str, str] | None:
        """The store and the space to which the audit log is exported; None where it is not.

        Raises :class:`SettingsError` where the setting names no configured store and a space of it.
        """
        if not self.mill.audit_log:
            return None
        store, _, space = self.mill.audit_log.partition(":")
        if store not in self.store_urls or not space:
            known = ", ".join(sorted(self.store_urls))
            raise SettingsError(f"setting mill.audit_log: write STORE:SPACE with one of the stores {known}")
        return store, space

    @property
    def policy_folder(self) -> Path:
        """Where the duplication policy files lie."""
        return Path(self.mill.policies).expanduser().absolute() if self.mill.policies else self.folder / "policies"


def _with_folder(url: str, folder: Path) -> str:
    """*url* with the data folder in place of ``{data}``; what stands in a query is quoted once more."""
    path, mark, query = url.partition("?")
    quoted = quote(str(folder))
    return path.replace("{data}", quoted) + mark + query.replace("{data}", quote(quoted))


def _nerve_url(log: LogSettings) -> str:
    from millstream.log.backends.nerve.queue import NerveQueue

    name, _, host = log.store.removeprefix("nerve:").partition("@")
    found = log.nerve.get(name)
    if found is None:
        raise SettingsError(f"setting log.store: there is no queue {name!r} in log.nerve; write [log.nerve.{name}]")
    try:
        queue = msgspec.convert({"name": name, **msgspec.structs.asdict(found)}, NerveQueue, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"setting log.nerve.{name}: {error}") from error
    return queue.url(host or next(iter(queue.hosts), ""))
