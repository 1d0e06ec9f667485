"""A snapshot in parts, one for each shard of a job, and the parts as one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millstream.batching.engine import EngineState
from millstream.batching.errors import SnapshotError
from millstream.batching.snapshot import decode_snapshot, encode_snapshot


def split_snapshot(data: bytes, place: Callable[[str], int], parts: int) -> list[bytes]:
    """The snapshots of *parts* batchers that together continue from *data*; *place* returns the batcher of a source,
    from 0 on."""
    rules, state = decode_snapshot(data)
    return [encode_snapshot(rules, _part(state, place, number)) for number in range(parts)]


def join_snapshots(parts: Sequence[bytes]) -> bytes:
    """The snapshot of one batcher that continues from *parts*, at least one, which have no source in common.

    Raises :class:`SnapshotError` where they were taken under different rules or at different clocks.
    """
    opened = [decode_snapshot(part) for part in parts]
    rules, first = opened[0]
    if any(other != rules or state.clock != first.clock for other, state in opened):
        raise SnapshotError("the snapshots have different times or rules: use the snapshots of one run")
    return encode_snapshot(rules, _joined([state for _, state in opened]))


def _part(state: EngineState, place: Callable[[str], int], number: int) -> EngineState:
    return msgspec.structs.replace(
        state,
        sources=[source for source in state.sources if place(source.source) == number],
        late=[source for source in state.late if place(source.source) == number],
        given=[record for record in state.given if place(record[0]) == number],
        parts=[_part(part, place, number) for part in state.parts],
    )


def _joined(states: Sequence[EngineState]) -> EngineState:
    return msgspec.structs.replace(
        states[0],
        sources=sorted((source for state in states for source in state.sources), key=lambda source: source.source),
        late=sorted((source for state in states for source in state.late), key=lambda source: source.source),
        given=sorted(record for state in states for record in state.given),
        parts=[_joined(parts) for parts in zip(*(state.parts for state in states), strict=True)],
    )
