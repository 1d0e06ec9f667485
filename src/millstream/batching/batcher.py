"""The event-time batcher: a state machine without input, output or a clock."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.batching.batch_config import BatchConfig, BatchingMode, ConflictCut, LatePolicy
from millstream.batching.engine import Engine, EngineHost
from millstream.batching.event import BatcherOutput, Event
from millstream.batching.late_engines import LateAmendEngine, LateSideEngine
from millstream.batching.order_free import OrderFreeEngine
from millstream.batching.rule_dispatch import rule_engine
from millstream.batching.rulebook import Rulebook
from millstream.batching.snapshot import decode_snapshot, decode_snapshot_for, encode_snapshot
from millstream.batching.thin_edge import ThinEdgeEngine


class Batcher(EngineHost):
    """Groups records of a source by the time they happened, one value a key.

    A caller feeds it records (:meth:`receive`), tells it how far receipt has come (:meth:`advance`) and ends the
    stream (:meth:`flush`); every call returns the batches it closed and the records it refused. A record ends in
    exactly one batch or is refused exactly once. In the mode ``order-free`` the batches are a function of the records
    and the rules alone, whatever order, chunks or restarts they came through (promise P5).

    >>> batcher = Batcher(window=50, max_delay=20)
    >>> _ = batcher.receive(Event(1, "pump", "temperature", event_time=110, received_at=120))
    >>> _ = batcher.receive(Event(2, "pump", "pressure", event_time=122, received_at=132))
    >>> batches, rejects = batcher.advance(181)
    >>> batches[0].events, batches[0].start, batches[0].end, batches[0].closed_at
    ((1, 2), 110, 122, 181)

    Args: the members of :class:`BatchConfig`. Raises :class:`~millstream.batching.errors.ConfigError`.
    """

    def __init__(
        self,
        window: int,
        max_delay: int,
        leap: int | None = None,
        conflict_cut: ConflictCut = "at_event",
        mode: BatchingMode = "order-free",
        *,
        max_count: int | None = None,
        max_bytes: int | None = None,
        late: LatePolicy | None = None,
        grace: int | None = None,
    ) -> None:
        config = BatchConfig(
            window=window,
            max_delay=max_delay,
            leap=leap,
            conflict_cut=conflict_cut,
            mode=mode,
            max_count=max_count,
            max_bytes=max_bytes,
            late=late,
            grace=grace,
        )
        self._begin(Rulebook(config))

    @classmethod
    def of(cls, rules: BatchConfig | Rulebook) -> Batcher:
        """A batcher under *rules*: the same for all records, or with overrides for some sources and keys."""
        batcher = cls.__new__(cls)
        batcher._begin(Rulebook(rules) if isinstance(rules, BatchConfig) else rules)
        return batcher

    def _begin(self, rules: Rulebook) -> None:
        self.rules, self.config = rules, rules.default
        self._engine: Engine = rule_engine(rules, _engine)

    def receive(self, event: Event) -> BatcherOutput:
        """Take one record; see :meth:`receive_many`."""
        return self._engine.receive((event,))

    def receive_many(self, events: Iterable[Event]) -> BatcherOutput:
        """Take *events*, in any order (``faithful``: in the order in which they are processed).

        Late and future records are refused at once, copies by the time their batch closes. A batch is closed here
        only where an earlier :meth:`advance` has made it certain. Raises
        :class:`~millstream.batching.errors.BoundBrokenError` where a record was received before the clock, and
        :class:`~millstream.batching.errors.FlushedError` after :meth:`flush`; none of *events* is taken then.
        """
        return self._engine.receive(events if isinstance(events, (list, tuple)) else list(events))

    def advance(self, bound: int) -> BatcherOutput:
        """Close all that is certain once no later record, of any source, has ``received_at`` below *bound*.

        Batches come by ``closed_at``, then source. A bound below the clock changes nothing.
        """
        return self._engine.advance(bound)

    def flush(self) -> BatcherOutput:
        """Close all that is open, with ``closed_at`` None: the stream has ended (a second call returns nothing)."""
        return self._engine.flush()

    def snapshot(self) -> bytes:
        """The whole state as bytes for :meth:`restore`, in this or any other process."""
        return encode_snapshot(self.rules, self._engine.dump())

    @classmethod
    def restore(cls, data: bytes, rules: BatchConfig | Rulebook | None = None) -> Batcher:
        """The batcher of which *data* is the snapshot.

        Raises :class:`~millstream.batching.errors.SnapshotError` where *data* is damaged, of another version, or
        was taken under other *rules* (if given); changes that were decided later may have been added to these.
        """
        if rules is None:
            kept, state = decode_snapshot(data)
            batcher = cls.of(kept)
            batcher._engine.load(state)
            return batcher
        batcher = cls.of(rules)
        batcher._engine.load(decode_snapshot_for(data, batcher.rules))
        return batcher


def _engine(config: BatchConfig) -> Engine:
    """The engine for the rules of *config*."""
    if config.mode == "faithful":
        return ThinEdgeEngine(config)
    if config.policy == "side":
        return LateSideEngine(config)
    return LateAmendEngine(config) if config.policy == "amend" else OrderFreeEngine(config)
