"""Accepting batches and rejects into the journal: what is known already is left as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.batch_files import check_reason
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.database import insert_rows
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.packed_members import packed_by_name, packed_members, packed_values
from millstream.anchoring.packing import PackedCut
from millstream.anchoring.states import AddResult, BatchStream, JournalCut
from millstream.batching.rule_changes import MAX_RULES_CHARACTERS
from millstream.core.canonical import canonical_json
from millstream.core.sql_rows import among, insert_new

MAX_CONFIG_CHARACTERS = MAX_RULES_CHARACTERS
"""The longest configuration (as canonical JSON) that leaves room for the files in a manifest."""

KEEP_IDS = sa.update(t.payloads).values(header=b"", lines=b"")
"""Of payloads the message ids stay."""

_BATCH = ("seq", "stream", "log", "batch", "source", "start", "size", "root", "end", "ended", "accepted")
_PAYLOAD = ("seq", "ids", "header", "lines")


def accept(
    connection: sa.Connection,
    log: str,
    config: Mapping[str, Any],
    batches: Sequence[EncodedBatch],
    rejects: Sequence[tuple[int, str]],
    *,
    at: int | None = None,
) -> AddResult:
    """Insert what is new of *batches* and *rejects* (message id, reason), in order, in the transaction of *connection*.

    *at* is the present time (microseconds); None where it is not known. Raises :class:`BatchFormatError` for a reason,
    or a configuration, that no anchored file may hold.
    """
    stream = stream_of(connection, log, config).stream
    roots, new = known_roots(connection, log, [batch.batch for batch in batches]), list[EncodedBatch]()
    for batch in batches:
        if batch.batch not in roots:
            roots[batch.batch] = batch.root
            new.append(batch)
    last = _insert_batches(connection, stream, log, new, at)
    reasons = {number: check_reason(reason) for number, reason in rejects}
    unknown = {number: reasons[number] for number in reasons.keys() - _known_rejects(connection, log, reasons)}
    _insert_rejects(connection, stream, log, last, unknown)
    conflicting = tuple(batch.batch for batch in batches if roots[batch.batch] != batch.root)
    return AddResult(len(new), len(unknown), len(batches) - len(new) - len(conflicting), conflicting)


def _config_text(config: Mapping[str, Any]) -> str:
    text = canonical_json(dict(config)).decode()
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise BatchFormatError(
            f"the batching configuration has {len(text):,} characters; the limit is {MAX_CONFIG_CHARACTERS:,}: use "
            "fewer overrides"
        )
    return text


def stream_of(connection: sa.Connection, log: str, config: Mapping[str, Any]) -> BatchStream:
    """The stream of *log* under *config*, which is made where it is new. Errors: see :func:`accept`."""
    text = _config_text(config)
    number = _stream_number(connection, log, text)
    if number is None:
        inserted = connection.execute(sa.insert(t.streams).values(log=log, config=text))
        number = int(inserted.inserted_primary_key[0])  # type: ignore[index]
        _take_rejects(connection, log, config, number)
    return BatchStream(number, log, text)


def _stream_number(connection: sa.Connection, log: str, config: str) -> int | None:
    query = sa.select(t.streams.c.stream).where(t.streams.c.log == log, t.streams.c.config == config)
    number = connection.execute(query).scalar()
    return None if number is None else int(number)


def _take_rejects(connection: sa.Connection, log: str, config: Mapping[str, Any], stream: int) -> None:
    """Let the new *stream* have the waiting rejects of *log* from before the changes of *config*: the batch that they
    wait for comes under *config*."""
    changes = config.get("changes", [])
    former = {name: value for name, value in config.items() if name != "changes"}
    for count in range(len(changes)):
        text = _config_text(former | ({"changes": changes[:count]} if count else {}))
        waiting = sa.and_(t.rejects.c.stream == _stream_number(connection, log, text), t.rejects.c.cut.is_(None))
        connection.execute(sa.update(t.rejects).where(waiting).values(stream=stream))


def known_roots(connection: sa.Connection, log: str, names: Sequence[str]) -> dict[str, str]:
    """The Merkle roots (hex) of those batches of *log* among *names* that were accepted, by their ids."""
    query = sa.select(t.batches.c.batch, t.batches.c.root)
    query = query.where(t.batches.c.log == log, among(t.batches.c.batch, names))
    packed = {found.batch: found.members.root_of(found.at) for found in packed_by_name(connection, log, names)}
    return packed | {row.batch: row.root for row in connection.execute(query)}


def _known_rejects(connection: sa.Connection, log: str, numbers: Iterable[int]) -> set[int]:
    query = sa.select(t.rejects.c.id).where(t.rejects.c.log == log, among(t.rejects.c.id, numbers))
    return set(connection.execute(query).scalars())


def _insert_batches(
    connection: sa.Connection, stream: int, log: str, batches: Sequence[EncodedBatch], at: int | None
) -> int:
    """Insert *batches* in order and return the last place that is taken after them."""
    last = last_place(connection)
    rows, payloads = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for seq, batch in enumerate(batches, last + 1):
        header, line = batch.header, batch.header_line
        size = len(line) + 1 + len(batch.lines)
        own = (header.batch, header.source, header.start, size, header.root, header.end, header.cut, at)
        rows.append((seq, stream, log, *own))
        payloads.append((seq, np.array(batch.ids, "<u8").tobytes(), line, batch.lines))
    insert_rows(connection, t.batches, _BATCH, rows)
    insert_rows(connection, t.payloads, _PAYLOAD, payloads)
    return last + len(rows)


def insert_packed(connection: sa.Connection, stream: BatchStream, cut: int, packed: PackedCut) -> None:
    """Insert the batches of *packed*, which are new, as members of *cut*: in one row, with their message ids."""
    first, batches = last_place(connection) + 1, packed.batches
    own = {"cut": cut, "log": stream.log, "first": first}
    connection.execute(sa.insert(t.packed), [own | {"ids": batches.messages, "sizes": batches.counts}])
    connection.execute(sa.insert(t.members), [own | packed_values(packed.members, first)])
    t.NAMES.add(connection, stream.log, batches.names, first + np.arange(len(batches.names)))


def refuse(connection: sa.Connection, cut: JournalCut, reasons: Mapping[str, str]) -> None:
    """Record why the batches of *cut* in *reasons* are invalid; such a batch of a packed cut gets its own row."""
    mine = t.batches.c.cut == cut.cut
    for row, members in packed_members(connection, t.members.c.cut == cut.cut):
        rows = [
            {"seq": row.first + at, "stream": cut.stream, "log": row.log, "cut": cut.cut, **members.row(at)}
            for at, name in enumerate(members.names)
            if name in reasons
        ]
        connection.execute(insert_new(connection, t.batches), rows)
    refusal = sa.update(t.batches).where(mine, t.batches.c.batch == sa.bindparam("name"))
    values = [{"name": name, "why": why} for name, why in reasons.items()]
    connection.execute(refusal.values(reason=sa.bindparam("why")), values)


def drop_payloads(connection: sa.Connection, cut: int) -> None:
    """Delete what is kept of the members of *cut*, but for the message ids of those that were refused."""
    own = sa.select(t.batches.c.seq).where(t.batches.c.cut == cut)
    refused = t.batches.c.reason.is_not(None)
    connection.execute(KEEP_IDS.where(t.payloads.c.seq.in_(own.where(refused))))
    connection.execute(sa.delete(t.payloads).where(t.payloads.c.seq.in_(own.where(~refused))))
    for ids in packed_ids(connection, t.packed.c.cut == cut):
        places = connection.execute(own.where(refused)).scalars()
        kept = [(place, ids.of(place).tobytes(), b"", b"") for place in places]
        insert_rows(connection, t.payloads, _PAYLOAD, kept)
    connection.execute(sa.delete(t.packed).where(t.packed.c.cut == cut))


class PackedIds(msgspec.Struct, frozen=True):
    """The message ids of a packed cut: of all its batches, and where those of each end; the first batch has the place
    ``first``."""

    first: int
    ids: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]

    def of(self, place: int) -> npt.NDArray[np.uint64]:
        """The ids of the batch at *place*."""
        at = place - self.first
        return self.ids[self.ends[at - 1] if at else 0 : self.ends[at]]

    def holder(self, message_id: int) -> int | None:
        """The place of the batch with this message; None where there is none."""
        found = np.flatnonzero(self.ids == message_id)
        return self.first + int(np.searchsorted(self.ends, found[0], "right")) if len(found) else None


def packed_ids(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> Iterator[PackedIds]:
    """The message ids of the *chosen* packed cuts that are not observed yet."""
    query = sa.select(t.packed.c.first, t.packed.c.ids, t.packed.c.sizes)
    for first, ids, sizes in connection.execute(query.where(chosen)):
        yield PackedIds(first, np.frombuffer(ids, "<u8"), np.cumsum(np.frombuffer(sizes, "<u4"), dtype=np.int64))


def last_place(connection: sa.Connection) -> int:
    """The last place in the order of adding that is taken; 0 before the first."""
    ends = [sa.select(sa.func.coalesce(sa.func.max(end), 0)) for end in (t.batches.c.seq, t.members.c.last)]
    return max(int(connection.execute(query).scalar_one()) for query in ends)


def _insert_rejects(connection: sa.Connection, stream: int, log: str, seq: int, reasons: Mapping[int, str]) -> None:
    rows = [
        {"log": log, "id": number, "stream": stream, "seq": seq, "reason": reason} for number, reason in reasons.items()
    ]
    if rows:
        connection.execute(sa.insert(t.rejects), rows)
