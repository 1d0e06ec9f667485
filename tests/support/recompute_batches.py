"""Batches and refused messages, computed from messages and from docs/formats/batch-id.md and records.md alone.

Nothing here imports Millstream's batching: the tests compare its results with these.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

Time = int
"""Microseconds since the epoch."""


LAST_TIME = 2**53 - 1
"""The last time that a line of a batch file can hold."""


class Row(NamedTuple):
    """A message of a log."""

    id: int
    source: str
    key: str
    event_time: Time
    received_at: Time
    body: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of batches, as the settings have them; times in microseconds."""

    window: Time
    max_delay: Time
    leap: Time | None = None
    conflict_cut: str = "at_event"
    max_count: int | None = None
    max_bytes: int | None = None
    late: str = "reject"
    grace: Time = 0

    @property
    def most_leap(self) -> Time:
        return self.max_delay if self.leap is None else self.leap

    def spelled(self, kind: str = "") -> str:
        """The rules as they are hashed into the id of a batch."""
        words = [f"1 window={self.window} max_delay={self.max_delay} leap={self.most_leap}"]
        words.append(f"conflict_cut={self.conflict_cut} mode=order-free")
        words += [f"max_count={self.max_count}"] if self.max_count is not None else []
        words += [f"max_bytes={self.max_bytes}"] if self.max_bytes is not None else []
        words += [f"late={self.late} grace={self.grace}"] if self.late != "reject" else []
        words += ["kind=side"] if kind == "side" else []
        return " ".join(words)


class Override(NamedTuple):
    """Other rules for a source, a key, or one key of one source (empty: any)."""

    source: str
    key: str
    rules: Rules


class Batch(NamedTuple):
    """A batch as the job describes it; :attr:`closed_at` is None where the end of the log closed it."""

    batch: str
    source: str
    start: Time
    end: Time
    closed_at: Time | None
    cut: str
    kind: str
    amends: tuple[str, ...]
    events: tuple[int, ...]
    root: str
    lines: bytes


class Refusal(NamedTuple):
    """A message that is in no batch."""

    id: int
    reason: str
    source: str
    received_at: Time


class _Record(NamedTuple):
    event_time: Time
    key: str
    digest: str
    received_at: Time
    id: int
    size: int
    row: Row


class _Group(NamedTuple):
    records: list[_Record]
    cut: str
    closes: Time


def batches_of(
    rows: Iterable[Row], rules: Rules, overrides: Sequence[Override] = (), *, flush: bool
) -> tuple[list[Batch], list[Refusal]]:
    """The batches and refusals of a whole log; without *flush* only what no later message can change."""
    rows = list(rows)
    clock = min(max(row.received_at for row in rows), LAST_TIME)
    shares: dict[tuple[str, Rules], list[Row]] = defaultdict(list)
    batches: list[Batch] = []
    refusals: list[Refusal] = []
    for row in rows:
        if row.source == "millstream.tick":
            refusals.append(Refusal(row.id, "tick", row.source, row.received_at))
        elif max(abs(row.event_time), abs(row.received_at)) > LAST_TIME:
            refusals.append(Refusal(row.id, "time", row.source, row.received_at))
        else:
            shares[row.source, _rules_for(row, rules, overrides)].append(row)
    for (source, own), share in shares.items():
        _batch_share(source, own, share, clock, flush, batches, refusals)
    return batches, refusals


def _rules_for(row: Row, rules: Rules, overrides: Sequence[Override]) -> Rules:
    for source, key in ((row.source, row.key), (row.source, ""), ("", row.key)):
        for override in overrides:
            if (override.source, override.key) == (source, key) and (source or key):
                return override.rules
    return rules


def _batch_share(
    source: str, rules: Rules, rows: list[Row], clock: Time, flush: bool, batches: list[Batch], refusals: list[Refusal]
) -> None:
    punctual: list[Row] = []
    late: list[Row] = []
    for row in rows:
        delay = row.received_at - row.event_time
        if delay < -rules.most_leap:
            refusals.append(Refusal(row.id, "future", row.source, row.received_at))
        elif delay > rules.max_delay + rules.grace:
            refusals.append(Refusal(row.id, "late", row.source, row.received_at))
        else:
            (punctual if delay <= rules.max_delay else late).append(row)
    longer = replace(rules, max_delay=rules.max_delay + rules.grace)
    first, refused = _batched(source, rules, rules, "batch", punctual, clock, flush)
    batches += first
    if rules.late != "amend":
        refusals += refused
    if rules.late == "side":
        aside, refused = _batched(source, rules, longer, "side", late, clock, flush)
        batches += aside
        refusals += refused
    if rules.late == "amend":
        final, refused = _batched(source, rules, longer, "amendment", [*punctual, *late], clock, flush)
        batches += _amendments(first, final, {row.id: row for row in rows})
        refusals += refused


def _amendments(first: list[Batch], final: list[Batch], rows: Mapping[int, Row]) -> Iterator[Batch]:
    known = {batch.batch for batch in first}
    places: dict[tuple[Time, str], set[str]] = defaultdict(set)
    for batch in first:
        for member in batch.events:
            places[rows[member].event_time, key_of(rows[member])].add(batch.batch)
    order = {batch.batch: (batch.start, batch.batch) for batch in first}
    for batch in final:
        if batch.batch not in known:
            named = {name for member in batch.events for name in places[rows[member].event_time, key_of(rows[member])]}
            yield batch._replace(amends=tuple(sorted(named, key=order.__getitem__)))


def digest_of(row: Row) -> str:
    """SHA-256 of a message's body."""
    return hashlib.sha256(row.body).hexdigest()


def key_of(row: Row) -> str:
    """The key by which a message is batched."""
    return row.key or f"{digest_of(row)}@{row.event_time}"


def _batched(
    source: str, named: Rules, rules: Rules, kind: str, rows: list[Row], clock: Time, flush: bool
) -> tuple[list[Batch], list[Refusal]]:
    kept, refusals = _without_copies(rows, rules, clock, flush)
    batches = []
    for group in _cut(kept, rules, clock):
        closed = group.closes if group.closes <= clock else None
        if closed is None and not flush:
            break
        start, end = group.records[0].event_time, group.records[-1].event_time
        events = [[record.event_time, record.key, record.digest] for record in group.records]
        hashed = ["millstream batch", named.spelled(kind), source, start, events]
        name = hashlib.sha256(json.dumps(hashed, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
        ids = tuple(record.id for record in group.records)
        lines = [message_line(record.row) for record in group.records]
        cut = "flush" if closed is None and group.cut == "end" else group.cut.replace("end", "window")
        batches.append(
            Batch(name, source, start, end, closed, cut, kind, (), ids, merkle_root(lines), b"\n".join(lines) + b"\n")
        )
    return batches, refusals


def _without_copies(rows: list[Row], rules: Rules, clock: Time, flush: bool) -> tuple[list[_Record], list[Refusal]]:
    copies: dict[tuple[Time, str], list[_Record]] = defaultdict(list)
    for row in rows:
        key = key_of(row)
        record = _Record(row.event_time, key, digest_of(row), row.received_at, row.id, len(row.body), row)
        copies[row.event_time, key].append(record)
    kept, refusals = [], []
    for (event_time, _), records in copies.items():
        best = min(records, key=lambda record: (record.digest, record.received_at, record.id))
        kept.append(best)
        if flush or event_time + rules.max_delay + 1 <= clock:
            for record in records:
                if record is not best:
                    reason = "duplicate" if record.digest == best.digest else "conflicting_duplicate"
                    refusals.append(Refusal(record.id, reason, record.row.source, record.received_at))
    return sorted(kept, key=lambda record: (record.event_time, record.key)), refusals


def _cut(records: list[_Record], rules: Rules, clock: Time) -> Iterator[_Group]:
    """Cut the records of one source into groups, and say why each ended and at which clock that is certain."""
    wait = rules.max_delay
    group: list[_Record] = []
    for now, grouped in groupby(records, key=lambda record: record.event_time):
        instant = list(grouped)
        if group and now > group[0].event_time + rules.window:
            yield _Group(group, "window", group[0].event_time + rules.window + 1 + wait)
            group = []
        times = {record.key: record.event_time for record in group}
        repeated = [times[record.key] for record in instant if record.key in times]
        if repeated and rules.conflict_cut == "at_event":
            yield _Group(group, "conflict", now + wait)
            group = []
        elif repeated:
            doubled = max(repeated) + now
            yield _Group([record for record in group if 2 * record.event_time < doubled], "conflict", now + 1 + wait)
            group = [record for record in group if 2 * record.event_time >= doubled]
        if group and not _fits([*group, *instant], rules):
            yield _Group(group, "size", now + 1 + wait)
            group = []
        if group or _fits(instant, rules):
            group += instant
            continue
        for record in instant:
            if group and not _fits([*group, record], rules):
                yield _Group(group, "size", now + 1 + wait)
                group = []
            group.append(record)
    if group:
        yield _Group(group, "end", group[0].event_time + rules.window + 1 + wait)


def _fits(records: list[_Record], rules: Rules) -> bool:
    if rules.max_count is not None and len(records) > rules.max_count:
        return False
    return rules.max_bytes is None or sum(record.size for record in records) <= rules.max_bytes


def message_line(row: Row) -> bytes:
    """The line of a message in a batch file, without the line end (docs/formats/records.md)."""
    line: dict[str, object] = {}
    try:
        line["body"] = row.body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = b64encode(row.body).decode()
    line |= {"event_time": row.event_time, "id": row.id, "key": row.key}
    if row.headers:
        line["headers"] = [_header(name, value) for name, value in row.headers]
    line |= {"received_at": row.received_at, "source": row.source}
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _header(name: str, value: bytes) -> dict[str, str]:
    try:
        return {"name": name, "value": value.decode()}
    except UnicodeDecodeError:
        return {"name": name, "value_base64": b64encode(value).decode()}


def merkle_root(leaves: Sequence[bytes]) -> str:
    """The Merkle root of RFC 9162, section 2.1."""
    return _root([hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]).hex()


def _root(hashes: Sequence[bytes]) -> bytes:
    if len(hashes) == 1:
        return hashes[0]
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _root(hashes[:middle]) + _root(hashes[middle:])).digest()
