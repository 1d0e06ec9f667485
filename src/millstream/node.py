"""The node: the one place where settings become wired objects."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchWriter,
    Cas,
    CutLimits,
    LocalCas,
    LogLedger,
    NotBatchedError,
    Observer,
    Replica,
    StoreCas,
    prove,
)
from millstream.batching import Rulebook
from millstream.batching.service import BatchService
from millstream.batching.ticks import Ticker
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.errors import InputError, MillstreamError, NotFoundError
from millstream.core.metrics import Metrics
from millstream.core.sql import open_server
from millstream.log import LogError, LogSpec, LogStore
from millstream.log.upkeep.upkeep_thread import UpkeepThread
from millstream.mill.adoption.adopted_store import with_adopted_sources
from millstream.mill.audit.audit_queue import AuditQueue
from millstream.mill.mount_check import MountCheck
from millstream.mill.policies.locations import FolderLocation, PolicyLocation, SpaceLocation
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.mill.providers import Providers
from millstream.mill.tasks import QueueName
from millstream.node_mill import MillNode
from millstream.queue import LogWorkQueue, WorkQueue, queue_log
from millstream.queue.database_queue import DatabaseWorkQueue
from millstream.queue.task_rows import queue_names
from millstream.settings import FILE_NAME, Settings
from millstream.stores import CAS_SPACE, Store, open_provider
from millstream.stores.audit import AuditedStore
from millstream.stores.processes import BulkProcesses
from millstream.stores.tiers import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from millstream.anchoring.feed import AnchorFeed
    from millstream.anchoring.registry import AnchorRecord, FollowState, LedgerFollower, OperationStatus
    from millstream.anchoring.registry import DidRegistry as IdentifierRegistry
    from millstream.anchoring.remote_cas import CasFailure
    from millstream.messaging.broker.address import Address
    from millstream.messaging.broker.server.broker_server import BrokerServer
    from millstream.pipeline.session import SparkOptions


DATABASE = "node.db"
REGISTRY_LEDGER = "registry.ledger"
"""The ledger of identifiers."""


class NodeError(MillstreamError):
    """The node cannot be used."""


class NodeNotFoundError(NodeError, NotFoundError):
    """There is no node in this folder."""


class UnknownMessageError(NodeError, NotFoundError):
    """The log has no message of this id."""


class NodeFolderError(NodeError, InputError):
    """This folder cannot be a node's."""


_SIGNS = (FILE_NAME, "log.db", DATABASE, "policies")
"""A folder with one of these in it is a node's; a first policy may be all that there is so far."""


class Node(MillNode):
    """Everything on one data folder, opened when it is first asked for and closed together. Thread-safe.

    Use it as a context manager.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.folder = settings.folder
        self.clock = clock or SystemClock()
        self._is_new = not (self.folder / DATABASE).exists()
        self._resources = contextlib.ExitStack()
        self._keeps_job_lines = False
        self._queues: dict[str, WorkQueue] = {}
        self._engines: dict[str, sa.Engine] = {}
        self._opening, self._connecting = threading.Lock(), threading.Lock()

    @classmethod
    def open(cls, settings: Settings, clock: Clock | None = None, *, create: bool = False) -> Self:
        """The node of *settings*. With *create* its folder is made where it is absent.

        Raises :class:`NodeNotFoundError` where there is no node, :class:`NodeFolderError` where there can be none.
        """
        try:
            if create:
                settings.folder.mkdir(parents=True, exist_ok=True)
            elif not any((settings.folder / name).exists() for name in _SIGNS):
                raise NodeNotFoundError(f"there is no node in {settings.folder}; check --data")
        except OSError as error:
            raise NodeFolderError(f"{settings.folder} cannot be a node's folder: {error.strerror}") from error
        return cls(settings, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all that was opened, the last first."""
        self._resources.close()

    def prepare(self) -> None:
        """Open at once what a server needs, so that it tells at its start what cannot be opened."""
        for part in ("store", "database", "journal", "ledger", "manifest", "observer", "repairs", "reports"):
            getattr(self, part)

    # The log

    @locked_cached_property
    def store(self) -> LogStore:
        """The store of the message logs."""
        store = self._resources.enter_context(open_store(self.settings.log_url, clock=self.clock))
        outputs = {path.stem for path in (self.folder / "batching").glob("*.state")}
        kinds = store.kinds() if outputs else {}
        for name in outputs.intersection(name for name, kind in kinds.items() if kind == "application"):
            with contextlib.suppress(LogError):  # it may be read-only
                store.log(LogSpec(name, kind="batches"))  # one that an earlier release made has no kind
        return store

    def upkeep(self, say: Callable[[str], object]) -> contextlib.AbstractContextManager[object]:
        """Moves and trims the logs by their rules while its block is open; *say* gets a line where it cannot."""
        settings = self.settings.log
        if not settings.upkeep:
            return contextlib.nullcontext()
        return UpkeepThread(self.store, self.clock, settings.rules, seconds=settings.upkeep / MICROSECONDS, say=say)

    @locked_cached_property
    def database(self) -> sa.Engine:
        """The node's database: states of batches, the index of anchored messages, the manifest of copies.

        A new node makes the folders of its own stores first: a database that is there says that they were made, so that
        one that is missing later is an unmounted disk, and not a start that was cut short.
        """
        if self._is_new:
            for name, url in self.settings.store_urls.items():
                if self.settings.owns(name):
                    open_provider(url, create=True)
        place = sa.URL.create("sqlite", database=str(self.folder / DATABASE))
        engine = sa.create_engine(place, connect_args={"timeout": 30})
        sa.event.listen(engine, "connect", _make_durable)
        self._resources.callback(engine.dispose)
        return engine

    # Messaging

    def broker(self, place: Address, tls_place: Address | None = None) -> BrokerServer:
        """A broker on the node's logs, listening on *place* while its block is open.

        At *tls_place*, if that is given, it encrypts, by the certificate of the settings or else by one of its own.
        Raises :class:`~millstream.messaging.errors.AccessError` where its keys or certificates cannot be used.
        """
        from millstream.messaging.broker.limits import limits_of
        from millstream.messaging.broker.security.access_keys import read_keyring
        from millstream.messaging.broker.security.generated_certificate import generated_tls
        from millstream.messaging.broker.security.tls import read_tls
        from millstream.messaging.broker.server.broker_server import BrokerServer

        settings = self.settings.broker
        keys, tls = read_keyring(settings.keys), read_tls(settings)
        if tls is None and tls_place is not None:
            tls = generated_tls(self.folder, tls_place.host, self.clock)
        limits = limits_of(settings)
        return BrokerServer(self.store, place, clock=self.clock, limits=limits, keys=keys, tls=tls, tls_place=tls_place)

    # Batching

    @property
    def rules(self) -> Rulebook:
        """The rules by which this node batches, with what is different for some sources and keys."""
        return self.settings.batching.rules

    def batch_service(
        self, log: str, output: str, *, ticks: Ticker | None = None, metrics: Metrics | None = None
    ) -> BatchService:
        """Batches *log* into the log *output* by this node's rules, from where it was; closed with the node.

        *ticks* appends ticks to *log*: see :class:`BatchService`.
        """
        source, sink = self.store.log(LogSpec(log), create=False), self.store.log(LogSpec(output, kind="batches"))
        state = self.batching_state(output)
        service = BatchService(source, sink, self.rules, state, ticks=ticks, clock=self.clock, metrics=metrics)
        self._resources.callback(service.close)
        return service

    def batching_state(self, output: str) -> Path:
        """The file in which whoever batches into the log *output* keeps how far it has come."""
        folder = self.folder / "batching"
        folder.mkdir(exist_ok=True)
        return folder / f"{output}.state"

    # Anchoring

    @property
    def cas_url(self) -> str:
        """Where the content-addressed files lie: ``cas:///folder``, or the URL of a storage provider."""
        return self.settings.anchoring.cas or (self.folder / "cas").absolute().as_uri().replace("file:", "cas:", 1)

    @locked_cached_property
    def cas(self) -> Cas:
        """The content-addressed files: in a folder, or at the storage provider that the settings name."""
        if not self.settings.anchoring.cas:
            return LocalCas(self.folder / "cas")
        return StoreCas(open_provider(self.settings.anchoring.cas, create=True))

    @locked_cached_property
    def ledger(self) -> LogLedger:
        """The ledger of anchors."""
        return LogLedger(self.store, self.clock)

    @locked_cached_property
    def journal(self) -> BatchJournal:
        """The states of batches on their way to an anchor."""
        return BatchJournal(self.database)

    @locked_cached_property
    def observer(self) -> Observer:
        """Reads anchors back and indexes what they hold."""
        return Observer(AnchorIndex(self.database), self.cas, self.ledger)

    @locked_cached_property
    def batch_writer(self) -> BatchWriter:
        """Takes batches to their anchor."""
        limits = CutLimits(self.settings.anchoring.max_batches, self.settings.anchoring.file_bytes)
        return BatchWriter(self.journal, self.cas, self.ledger, self.observer, limits=limits)

    def anchor_feed(self, log: str, batches: str) -> AnchorFeed:
        """Anchors the batches that the log *batches* gets, which are of *log*.

        Raises :class:`~millstream.anchoring.BatchFormatError` where this node's rules amend batches.
        """
        from millstream.anchoring.feed import AnchorFeed, refuse_amending_rules

        refuse_amending_rules(self.rules)
        source, output = self.store.log(LogSpec(log), create=False), self.store.log(LogSpec(batches, kind="batches"))
        return AnchorFeed(source, output, self.batch_writer, self.rules.plain)

    @locked_cached_property
    def registry_ledger(self) -> LogLedger:
        """The ledger of anchors of identifiers."""
        return LogLedger(self.store, self.clock, name=REGISTRY_LEDGER)

    @locked_cached_property
    def registry(self) -> IdentifierRegistry:
        """This process as an instance of the registry of identifiers; not started."""
        from millstream.anchoring.http_reader import redacted_url
        from millstream.anchoring.registry import DidRegistry, RegistryDatabase, network_versions
        from millstream.anchoring.registry.service import instance_name

        settings = self.settings.registry
        state = self.follow_state()
        if state is not None and state.position:  # the network was chosen when the first entry was read
            settings = msgspec.structs.replace(settings, profile=state.profile, method=state.method)
        return DidRegistry(
            RegistryDatabase(self._engine(settings.database), self.clock),
            self.cas,
            self.registry_ledger,
            instance=instance_name(),
            settings=settings.parameters,
            versions=network_versions(settings.network),
            broker=self.queue("operation") if self.settings.queue.broker else None,
            follows=redacted_url(settings.follow.ledger),
        )

    def follow_state(self) -> FollowState | None:
        """How far the registry has followed the ledger of another one; None where it follows none."""
        from millstream.anchoring.registry.follow_state import follow_state

        with self._engine(self.settings.registry.database).connect() as connection:
            return follow_state(connection, pending=bool(self.settings.registry.follow.ledger))

    def follower(
        self,
        *,
        told: Callable[[AnchorRecord], object] = lambda _: None,
        refused: Callable[[CasFailure], object] = lambda _: None,
    ) -> LedgerFollower:
        """Reads the registry that the settings name (``registry.follow``) into this node's.

        *told* hears of each entry that is recorded, *refused* of each place that did not give a file.
        Raises :class:`~millstream.anchoring.registry.FollowError` where this node has anchored operations of its own.
        """
        from millstream.anchoring.ledger_source import open_ledger
        from millstream.anchoring.registry import FollowError, LedgerFollower, RegistryDatabase, network_versions
        from millstream.anchoring.remote_cas import FallbackCas, open_cas_source

        settings = self.settings.registry
        if self.registry_ledger.last_number:
            raise FollowError("this node has anchored operations of its own: follow another ledger on another node")
        return LedgerFollower(
            RegistryDatabase(self._engine(settings.database), self.clock),
            FallbackCas([open_cas_source(place) for place in settings.follow.cas], refused, clock=self.clock),
            open_ledger(settings.follow.ledger),
            network_versions(settings.network),
            told=told,
        )

    def operation_status(self, operation: str) -> OperationStatus:
        """Where the operation of this id stands.

        Raises :class:`~millstream.anchoring.registry.UnknownOperationError`.
        """
        from millstream.anchoring.registry import UnknownOperationError

        status = self.registry.status(operation)
        if status is None:
            raise UnknownOperationError(f"no operation {operation[:100]!r} is recorded here; it may have expired")
        return status

    def prove(self, log: str, message_id: int) -> bytes:
        """The proof of one message, as canonical JSON; see :func:`millstream.anchoring.prove`.

        Raises :class:`~millstream.log.LogNotFoundError`, :class:`UnknownMessageError` where it is not anchored because
        there is no such message.
        """
        try:
            return prove(
                log,
                message_id,
                index=self.observer.index,
                cas=self.cas,
                ledger=self.ledger,
                journal=self.journal,
                replicas=self.replicas,
            )
        except NotBatchedError:
            self._require_message(log, message_id)
            raise

    def _require_message(self, log: str, message_id: int) -> None:
        """Raise an error where there is no such message or log. Batches may come here without the log they are of."""
        if any(stream.log == log for stream in self.journal.streams()):
            return
        last_id = self.store.log(LogSpec(log), create=False).last_id
        if message_id > last_id:
            has = f"its last one is {last_id}" if last_id else "it has none yet"
            raise UnknownMessageError(f"the log {log!r} has no message {message_id}: {has}")

    def replicas(self, cid: str) -> Sequence[Replica]:
        """The copies of the anchored file *cid*, and when each was last verified."""
        return [
            Replica(row.store, row.space, row.content_id, row.sha256, row.verified_at, row.outcome)
            for row in self.manifest.replicas(CAS_SPACE, cid)
            if not row.deleted
        ]

    # Stores and bulk tasks

    @locked_cached_property
    def providers(self) -> Providers:
        """The storage providers by id. None of their folders is made here: see :attr:`database`."""
        mount_check = MountCheck(self.manifest, self.clock)
        processes = self._resources.enter_context(BulkProcesses(self.settings.mill.processes))
        stores = {name: open_provider(url, processes=processes) for name, url in self.settings.store_urls.items()}
        stores = with_adopted_sources(stores, lambda: self.database)
        audited = {name: self.audited(name, store) for name, store in stores.items()}
        return Providers(audited, self.clock, mount_check=mount_check)

    def audited(self, name: str, store: Store, *, user: str = "mill") -> Store:
        """*store*, which the settings call *name*, as *user* changes it: audited where the settings say so."""
        described = self.settings.stores.get(name)
        if described is None or not described.audited:
            return store
        return AuditedStore(store, self.outbox, name, account=self.settings.mill.account, user=user)

    @locked_cached_property
    def policies(self) -> Policies:
        """The duplication policies, as they are now."""
        return PolicyRepository(self.policy_location).load()

    def forget_policies(self) -> None:
        """Somebody saved a policy: read them anew when they are next asked for."""
        self.__dict__.pop("policies", None)

    @property
    def policy_location(self) -> PolicyLocation:
        """Where the duplication policies lie."""
        space = self.settings.policy_space
        if space is None:
            return FolderLocation(self.settings.policy_folder)
        return SpaceLocation(self.providers[space[0]], space[1], self.clock)

    def queue(self, name: str) -> WorkQueue:
        """The work queue *name*, opened once and kept."""
        with self._opening:
            if name not in self._queues:
                queue = self._broker_queue(name) if self.settings.queue.broker else self._log_queue(name)
                self._queues[name] = AuditQueue(queue, self.outbox) if name == QueueName.AUDIT else queue
            return self._queues[name]

    def has_open_queue(self, name: str) -> bool:
        """Whether this process works on the queue *name*."""
        with self._opening:
            return name in self._queues

    def _log_queue(self, name: str) -> WorkQueue:
        queue = LogWorkQueue(self.store.log(queue_log(name)), clock=self.clock)
        self._resources.callback(queue.close)
        queue.reclaim()  # the workers of a node end with it, so leases from before are nobody's
        return queue

    def _broker_queue(self, name: str) -> WorkQueue:
        from millstream.messaging.rocketmq_work_queue import SCHEME, RocketWorkQueue
        from millstream.queue.rabbitmq import ConnectionOptions, RabbitWorkQueue

        settings = self.settings.queue
        engine, known_as = self._engine(settings.database), self._broker_prefix + name
        queue: DatabaseWorkQueue
        if settings.broker.startswith(SCHEME):
            queue = RocketWorkQueue(settings.broker, engine, known_as, self.clock)
        else:
            options = ConnectionOptions(
                publishers=settings.publisher_pool_size,
                retry_first=settings.reconnect_initial_interval / MICROSECONDS,
                retry_longest=settings.reconnect_max_interval / MICROSECONDS,
            )
            queue = RabbitWorkQueue(settings.broker, engine, known_as, self.clock, options=options)
        self._resources.callback(queue.close)
        return queue

    @property
    def _broker_prefix(self) -> str:
        """What the names of queues begin with at the broker; topics of RocketMQ may have no dots."""
        return "millstream." if self.settings.queue.broker.startswith("amqp") else "millstream-"

    def broker_queues(self) -> Sequence[str]:
        """The names of the queues on the broker that the settings name."""
        names = queue_names(self._engine(self.settings.queue.database))
        prefix = self._broker_prefix
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _engine(self, url: str) -> sa.Engine:
        """The database at *url*, kept open once for all; the node's own where there is none."""
        if not url:
            return self.database
        with self._connecting:
            if url not in self._engines:
                self._engines[url] = open_server(url, self.clock)
                self._resources.callback(self._engines[url].dispose)
            return self._engines[url]

    # Spark

    def spark(self) -> contextlib.AbstractContextManager[SparkSession]:
        """A Spark session for the jobs of :mod:`millstream.pipeline`, stopped when the block is left.

        Each job that ends from now on, as long as the node is open, leaves its line in ``jobs/jobs.jsonl``.
        """
        from millstream.pipeline.session import spark_session

        self._keep_job_lines()
        return spark_session(self.folder / "spark", self.spark_options, clock=self.clock)

    def _keep_job_lines(self) -> None:
        """Once is enough, however many sessions there are."""
        from millstream.pipeline.job_log import job_log_file

        if not self._keeps_job_lines:
            self._resources.enter_context(job_log_file(self.folder / "jobs" / "jobs.jsonl"))
            self._keeps_job_lines = True

    @property
    def spark_options(self) -> SparkOptions:
        """How the settings want Spark to run."""
        from millstream.pipeline.session import SparkOptions

        pipeline = self.settings.pipeline
        memory, java, confs = pipeline.driver_memory, pipeline.java, pipeline.confs
        return SparkOptions(pipeline.master, memory, java, quick=pipeline.quick, confs=confs)


def _make_durable(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA cache_size=-16384")  # KiB: batches are indexed by their hashes, so any page may be next
    cursor.close()
