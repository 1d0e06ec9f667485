"""The batcher's state as bytes: ``MSBT``, a version byte, the CRC-32 of the rest (little-endian), then MessagePack.

Version 2 holds the open records one by one, version 3 as columns. Version 4 is version 2 under rules that were changed,
so that releases that know of no changes refuse it. Every host reads all of them.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import msgspec

from millstream.batching.engine import EngineState
from millstream.batching.errors import OLDER_SNAPSHOT, ConfigError, SnapshotError
from millstream.batching.rulebook import Rulebook
from millstream.core.decoding import prepared
from millstream.core.timestamps import time_text

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"MSBT"
_ROWS = 2
_COLUMNS = 3
_CHANGED = 4
_HEAD = struct.Struct("<4sBI")


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    rules: Rulebook
    state: EngineState


class _ColumnSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The memory of one order-free engine; ``rows`` is an Arrow IPC stream of its open records."""

    rules: Rulebook
    clock: int | None
    flushed: bool
    rows: bytes

    def table(self) -> pa.Table:
        """The open records. Raises :class:`SnapshotError`."""
        from millstream.batching.column_state import read_rows

        return read_rows(self.rows)


_encoder = msgspec.msgpack.Encoder()
_decoders = {
    _ROWS: msgspec.msgpack.Decoder(prepared(_Snapshot)),
    _COLUMNS: msgspec.msgpack.Decoder(prepared(_ColumnSnapshot)),
    _CHANGED: msgspec.msgpack.Decoder(prepared(_Snapshot)),
}


def encode_snapshot(rules: Rulebook, state: EngineState) -> bytes:
    """*state* under *rules* as bytes. Raises :class:`SnapshotError` where a number does not fit 64 bits."""
    try:
        return _seal(_CHANGED if rules.later else _ROWS, _Snapshot(rules, state))
    except OverflowError as error:
        raise SnapshotError(
            "cannot take a snapshot: an id or a time of an open record does not fit into a signed 64-bit integer; use "
            "smaller ids and larger ticks"
        ) from error


def encode_columns(rules: Rulebook, clock: int | None, flushed: bool, rows: pa.Table) -> bytes:
    """The open records *rows* (``EVENT_SCHEMA``) of one order-free engine under *rules* as bytes."""
    from millstream.batching.column_state import write_rows

    return _seal(_COLUMNS, _ColumnSnapshot(rules, clock, flushed, write_rows(rows)))


def decode_snapshot(data: bytes) -> tuple[Rulebook, EngineState]:
    """The rules and the state in *data*. Raises :class:`SnapshotError` that says what is wrong with it."""
    found = _open(data)
    if isinstance(found, _ColumnSnapshot):
        from millstream.batching.column_state import state_from_rows

        return found.rules, state_from_rows(found.clock, found.flushed, found.table())
    return found.rules, found.state


def decode_columns(data: bytes) -> tuple[Rulebook, int | None, bool, pa.Table]:
    """The rules, clock, whether it was flushed, and open records of *data*, which must be of one order-free engine."""
    found = _open(data)
    if isinstance(found, _ColumnSnapshot):
        return found.rules, found.clock, found.flushed, found.table()
    from millstream.batching.column_state import rows_from_state

    return found.rules, found.state.clock, found.state.flushed, rows_from_state(found.state)


def decode_snapshot_for(data: bytes, rules: Rulebook) -> EngineState:
    """The state in *data*, for an engine under *rules*.

    Raises :class:`SnapshotError` where *data* is not valid, or was taken under other rules: only changes that were
    decided later may have been added.
    """
    kept, state = decode_snapshot(data)
    if kept == rules:
        return state
    periods, later = kept.periods, kept.later
    added = rules.later[len(later) :]
    if not added or (periods, later) != (rules.periods[: len(periods)], rules.later[: len(later)]):
        raise SnapshotError(
            f"the snapshot was taken with the rules {kept.rules_text}, not {rules.rules_text}: keep the old rules, or "
            "let the new rules begin at a later time (`millstream batch rules`)"
        )
    if state.clock is not None and state.clock > added[0].decided:
        raise SnapshotError(
            f"the snapshot was taken at {time_text(state.clock)}, after the rules were changed at "
            f"{time_text(added[0].decided)}, but does not contain this change: {OLDER_SNAPSHOT}"
        )
    parts = [_without_records(period, state) for period in rules.periods[len(periods) :]]
    return EngineState(state.clock, False, [], parts=[*(state.parts if later else [state]), *parts])


def _without_records(rules: Rulebook, state: EngineState) -> EngineState:
    """What the engine for the *rules* of a period remembers at the time of *state*, if it got no record."""
    one = EngineState(state.clock, state.flushed, [])
    return EngineState(state.clock, False, [], parts=[one] * len(rules.configs)) if rules.overrides else one


def _seal(version: int, content: _Snapshot | _ColumnSnapshot) -> bytes:
    body = _encoder.encode(content)
    return _HEAD.pack(_MAGIC, version, zlib.crc32(body)) + body


def _open(data: bytes) -> _Snapshot | _ColumnSnapshot:
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise SnapshotError(
            "not a snapshot of a batcher: the data does not begin with MSBT; give the bytes that snapshot() returned"
        )
    _, version, checksum = _HEAD.unpack_from(data)
    if version not in _decoders:
        remedy = (
            "upgrade Millstream"
            if version > _CHANGED
            else "delete the snapshot, and replay the log from the start of the oldest open batch"
        )
        raise SnapshotError(
            f"the snapshot of the batcher has version {version}, but this release reads versions {_ROWS} to "
            f"{_CHANGED}: {remedy}"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise SnapshotError(f"the snapshot of the batcher is damaged (its checksum does not match): {OLDER_SNAPSHOT}")
    try:
        return _decoders[version].decode(body)  # type: ignore[attr-defined, no-any-return]
    except (msgspec.DecodeError, ConfigError) as error:
        raise SnapshotError(f"cannot read the snapshot of the batcher: {error}; {OLDER_SNAPSHOT}") from error
