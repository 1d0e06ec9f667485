"""The event-time batcher: a state machine without input, output or a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.batching.config import BatchConfig, ConflictCut, Late, Mode
from millstream.batching.engine import Engine
from millstream.batching.errors import SnapshotError
from millstream.batching.event import Event, Outcome
from millstream.batching.faithful import Faithful
from millstream.batching.late import Amend, Side
from millstream.batching.orderfree import OrderFree
from millstream.batching.routed import Routed
from millstream.batching.rulebook import Rulebook
from millstream.batching.snapshot import decode_snapshot, encode_snapshot


class Batcher:
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
        mode: Mode = "order-free",
        *,
        max_count: int | None = None,
        max_bytes: int | None = None,
        late: Late | None = None,
        grace: int | None = None,
    ) -> None:
        self.config = BatchConfig(window, max_delay, leap, conflict_cut, mode, max_count, max_bytes, late, grace)
        self._begin(Rulebook(self.config))

    @classmethod
    def of(cls, rules: BatchConfig | Rulebook) -> Batcher:
        """A batcher under *rules*: the same for all records, or with overrides for some sources and keys."""
        if isinstance(rules, BatchConfig):
            rules = Rulebook(rules)
        batcher = cls(**msgspec.structs.asdict(rules.default))
        if rules.overrides:
            batcher._begin(rules)
        return batcher

    def _begin(self, rules: Rulebook) -> None:
        self.rules = rules
        self._engine: Engine = Routed(rules, _engine) if rules.overrides else _engine(rules.default)

    @property
    def clock(self) -> int | None:
        """The latest bound that :meth:`advance` was given; None before the first."""
        return self._engine.clock

    @property
    def due(self) -> int | None:
        """A clock before which nothing will be closed unless something is received; None where nothing is open."""
        return self._engine.due

    @property
    def open_sources(self) -> int:
        """How many sources have records that are in no closed batch yet."""
        return self._engine.open_sources

    def receive(self, event: Event) -> Outcome:
        """Take one record; see :meth:`receive_many`."""
        return self._engine.receive((event,))

    def receive_many(self, events: Iterable[Event]) -> Outcome:
        """Take *events*, in any order (``faithful``: in the order in which they are processed).

        Late and future records are refused at once, copies by the time their batch closes. A batch is closed here
        only where an earlier :meth:`advance` has made it certain. Raises
        :class:`~millstream.batching.errors.BoundBrokenError` where a record was received before the clock, and
        :class:`~millstream.batching.errors.FlushedError` after :meth:`flush`; none of *events* is taken then.
        """
        return self._engine.receive(events if isinstance(events, (list, tuple)) else list(events))

    def advance(self, bound: int) -> Outcome:
        """Close all that is certain once no later record, of any source, has ``received_at`` below *bound*.

        Batches come by ``closed_at``, then source. A bound below the clock changes nothing.
        """
        return self._engine.advance(bound)

    def flush(self) -> Outcome:
        """Close all that is open, with ``closed_at`` None: the stream has ended (a second call returns nothing)."""
        return self._engine.flush()

    def snapshot(self) -> bytes:
        """The whole state as bytes for :meth:`restore`, in this or any other process."""
        return encode_snapshot(self.rules, self._engine.dump())

    @classmethod
    def restore(cls, data: bytes, rules: BatchConfig | Rulebook | None = None) -> Batcher:
        """The batcher of which *data* is the snapshot.

        Raises :class:`~millstream.batching.errors.SnapshotError` where *data* is damaged, of another version, or
        was taken under other *rules* (if given).
        """
        kept, state = decode_snapshot(data)
        if isinstance(rules, BatchConfig):
            rules = Rulebook(rules)
        if rules is not None and rules != kept:
            raise SnapshotError(
                f"the snapshot was taken under other rules ({kept.version}) than asked for ({rules.version}): "
                "flush the old batcher first, or go on under its rules"
            )
        batcher = cls.of(kept)
        batcher._engine.load(state)
        return batcher


def _engine(config: BatchConfig) -> Engine:
    """What batches by the rules of *config*."""
    if config.mode == "faithful":
        return Faithful(config)
    if config.policy == "side":
        return Side(config)
    return Amend(config) if config.policy == "amend" else OrderFree(config)
