"""The looping producers of a node, wired from its stores, policies and queues."""

from __future__ import annotations

from collections.abc import Callable

from millstream.mill.policies.repository import CachedPolicies, PolicyRepository
from millstream.mill.producers.bits import BitMorsel, BitProducer
from millstream.mill.producers.duplication import DuplicationMorsel, DuplicationProducer
from millstream.mill.producers.producer_loop import LoopRun, ProducerLoop
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.producers.state import StateDocument
from millstream.mill.producers.statistics import StatisticsMorsel, StatisticsProducer
from millstream.mill.tasks import QueueName
from millstream.node.audit import AuditPart
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.policies import PoliciesPart
from millstream.node.queues import QueuesPart
from millstream.node.stores import StoresPart


class ProducersPart:
    """Makes the loops that put tasks on the queues of the mill."""

    def __init__(
        self,
        context: NodeContext,
        databases: DatabasesPart,
        stores: StoresPart,
        *,
        policies: PoliciesPart,
        queues: QueuesPart,
        audit: AuditPart,
    ) -> None:
        self._databases = databases
        self._context = context
        self._audit = audit
        self._stores = stores
        self._policies = policies
        self._queues = queues

    def duplication(
        self,
        spaces: SpaceFilter,
        *,
        only_differences: bool = False,
        on_progress: Callable[[LoopRun], None] | None = None,
    ) -> tuple[ProducerLoop[DuplicationMorsel], DuplicationProducer]:
        """The looping duplication producer of *spaces*; with *only_differences* it leaves out what is the same."""
        queue, settings = self._queues.open(QueueName.DUPLICATION_LOW), self._context.settings.mill.produce
        producer = DuplicationProducer(
            CachedPolicies(PolicyRepository(self._policies.location), self._context.clock),
            self._stores.providers,
            self._stores.manifest,
            queue,
            change_guard=self._stores.change_guard,
            outbox=self._stores.outbox,
            only_differences=only_differences or settings.only_differences,
            spaces=spaces,
        )
        file = StateDocument(self._databases.documents.document("producers/duplication.json"), DuplicationMorsel)
        limits = {"frequency": settings.duplication_frequency, "most": settings.duplication_most}
        return ProducerLoop(file, producer, queue, self._context.clock, on_progress=on_progress, **limits), producer

    def bits(
        self, spaces: SpaceFilter, *, on_progress: Callable[[LoopRun], None] | None = None
    ) -> ProducerLoop[BitMorsel]:
        """The looping bit producer of *spaces*."""
        queue, settings = self._queues.open(QueueName.BIT_INTEGRITY), self._context.settings.mill.produce
        producer = BitProducer(
            self._stores.providers,
            self._stores.manifest,
            queue,
            self._queues.open(QueueName.BIT_REPORT),
            self._context.clock,
            spaces=spaces,
            account=self._context.settings.mill.account,
            skip=settings.bits_skip,
            audit_lookup=self._audit.lookup,
            policies=CachedPolicies(PolicyRepository(self._policies.location), self._context.clock),
        )
        file = StateDocument(self._databases.documents.document("producers/bits.json"), BitMorsel)
        limits = {"frequency": settings.bits_frequency, "most": settings.bits_most}
        return ProducerLoop(file, producer, queue, self._context.clock, on_progress=on_progress, **limits)

    def statistics(
        self, spaces: SpaceFilter, *, on_progress: Callable[[LoopRun], None] | None = None
    ) -> ProducerLoop[StatisticsMorsel]:
        """The looping producer of the storage statistics of *spaces*."""
        queue, settings = self._queues.open(QueueName.STORAGE_STATISTICS), self._context.settings.mill.produce
        account = self._context.settings.mill.account
        producer = StatisticsProducer(
            self._stores.manifest, self._stores.statistics, queue, self._context.clock, spaces=spaces, account=account
        )
        file = StateDocument(self._databases.documents.document("producers/statistics.json"), StatisticsMorsel)
        return ProducerLoop(
            file, producer, queue, self._context.clock, frequency=settings.statistics_frequency,
            most=settings.statistics_most, start=settings.statistics_start_time, on_progress=on_progress,
        )  # fmt: skip
