"""The journal: the durable state of every batch that was accepted, until it is observed and ever after.

accepted → cut → anchored → observed, or rejected with a reason. Payloads are kept from ``add`` until the batch is
observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from millstream.anchoring import journal_tables as t
from millstream.anchoring.batch_files import BatchFilePart
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.database import metadata
from millstream.anchoring.errors import JournalBusyError
from millstream.anchoring.journal_writing import (
    KEEP_IDS,
    accept,
    drop_payloads,
    insert_packed,
    known_roots,
    packed_ids,
    refuse,
    stream_of,
)
from millstream.anchoring.packed_members import packed_by_name, packed_members
from millstream.anchoring.packing import PackedCut
from millstream.anchoring.states import (
    AddResult,
    BatchState,
    BatchStatus,
    BatchStream,
    CutCandidate,
    CutPlan,
    FeedPosition,
    JournalCut,
    JournalTotals,
)
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import among, one_of, put_row, total

_ID_BYTES = 8
_DROPPED = 1_000


class BatchJournal:
    """The journal in a database. Thread-safe; every call is one transaction and durable when it returns.

    *engine* is an SQLAlchemy engine; the tables are made where absent.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        make_tables(engine, metadata, t.ALL)

    def add(
        self,
        log: str,
        config: Mapping[str, Any],
        batches: Sequence[EncodedBatch],
        rejects: Sequence[tuple[int, str]],
        *,
        fed: FeedPosition | None = None,
        at: int | None = None,
    ) -> AddResult:
        """Accept *batches* and *rejects* (message id, reason) of *log*, all or none; known ones are left as they are.

        *at* is the present time (microseconds). *fed*, where they end in a log of batches, is kept in the same
        transaction. Raises :class:`BatchFormatError` for a reason that no reject file may hold.
        """
        with writing(self._engine) as connection:
            if fed is not None:
                put_row(connection, t.feeds, msgspec.structs.asdict(fed))
            return accept(connection, log, config, batches, rejects, at=at)

    def fed(self, batches: str) -> int | None:
        """The last id of the log *batches* that was added with its position; None if there is none."""
        rows = self._rows(sa.select(t.feeds.c.last_id).where(t.feeds.c.batches == batches))
        return int(rows[0].last_id) if rows else None

    def forget_fed(self, batches: str) -> None:
        """Remove the position of the log *batches*: the log's own pointer counts, until batches are added again."""
        with writing(self._engine) as connection:
            connection.execute(sa.delete(t.feeds).where(t.feeds.c.batches == batches))

    def stream(self, log: str, config: Mapping[str, Any]) -> BatchStream:
        """The stream of *log* under *config*. Raises :class:`BatchFormatError` for a configuration that is too long."""
        with writing(self._engine) as connection:
            return stream_of(connection, log, config)

    def known_roots(self, log: str, names: Sequence[str]) -> Mapping[str, str]:
        """The Merkle roots (hex) of those batches of *log* among *names* that were accepted, by their ids."""
        with self._engine.connect() as connection:
            return known_roots(connection, log, names)

    def streams(self) -> Sequence[BatchStream]:
        """The streams that have accepted batches waiting, by log and configuration."""
        waiting = sa.select(t.batches.c.stream).where(t.WAITING).distinct()
        query = sa.select(t.streams).where(t.streams.c.stream.in_(waiting))
        return [BatchStream(*row) for row in self._rows(query.order_by(t.streams.c.log, t.streams.c.config))]

    def candidates(self, stream: BatchStream, limit: int) -> Sequence[CutCandidate]:
        """The first *limit* accepted batches of *stream*, in the order of adding."""
        query = sa.select(t.batches.c.seq, t.batches.c.batch, t.batches.c.size)
        query = query.where(t.WAITING, t.batches.c.stream == stream.stream)
        return [CutCandidate(*row) for row in self._rows(query.order_by(t.batches.c.seq).limit(limit))]

    def message_ids(self, stream: BatchStream, last_seq: int) -> Iterator[list[int]]:
        """The message ids of each accepted batch of *stream* up to *last_seq*, in the order of adding."""
        query = sa.select(t.payloads.c.ids).join(t.batches, t.batches.c.seq == t.payloads.c.seq)
        query = query.where(_waiting_batches(stream, last_seq))
        for row in self._rows(query.order_by(t.batches.c.seq)):
            yield np.frombuffer(row.ids, "<u8").tolist()

    def waiting_parts(self, stream: BatchStream, last_seq: int) -> Iterator[BatchFilePart]:
        """The accepted batches of *stream* up to *last_seq*, in the order of a manifest.

        That is the order of start, source and batch id, so the same batches give the same files.
        """
        return self._parts(_waiting_batches(stream, last_seq))

    def cut_parts(self, cut: JournalCut) -> Iterator[BatchFilePart]:
        """The batches of *cut*, in the order of a manifest."""
        return self._parts(t.batches.c.cut == cut.cut)

    def waiting_rejects(self, stream: BatchStream, last_seq: int, limit: int) -> Sequence[tuple[int, str]]:
        """Up to *limit* rejects (message id, reason), by id, of those of *stream* that wait, added by *last_seq*."""
        return self._rejects(_waiting_rejects(stream, last_seq), limit)

    def drop_rejects(self, log: str, numbers: Sequence[int]) -> None:
        """Remove those of the rejects *numbers* (message ids) of *log* that wait: they are anchored already.

        Some at a time, so that no other writer waits long: what is left after a crash is dropped by the next cut.
        """
        ordered = sorted(numbers)
        for start in range(0, len(ordered), _DROPPED):
            chunk = ordered[start : start + _DROPPED]
            with writing(self._engine) as connection:
                mine = sa.and_(t.rejects.c.log == log, one_of(connection, t.rejects.c.id, chunk))
                connection.execute(sa.delete(t.rejects).where(mine, t.rejects.c.cut.is_(None)))

    def cut_rejects(self, cut: JournalCut) -> Sequence[tuple[int, str]]:
        """The rejects (message id, reason) of *cut*, by id."""
        return self._rejects(t.rejects.c.cut == cut.cut)

    def reject(self, reasons: Mapping[int, str]) -> None:
        """Set accepted batches aside for good: reasons by place in the order of adding. Of their payloads only the
        message ids stay. A batch that another process has put into a cut since is left as it is."""
        update = sa.update(t.batches).where(t.batches.c.seq == sa.bindparam("at"), t.WAITING)
        values = [{"at": seq, "why": why} for seq, why in reasons.items()]
        with writing(self._engine) as connection:
            connection.execute(update.values(reason=sa.bindparam("why")), values)
            rejected = sa.select(t.batches.c.seq).where(
                among(t.batches.c.seq, reasons), t.batches.c.reason.is_not(None), t.batches.c.cut.is_(None)
            )
            connection.execute(KEEP_IDS.where(t.payloads.c.seq.in_(rejected)))

    def prepare(self, plan: CutPlan) -> JournalCut:
        """Write the cut down before anything of it leaves this database.

        Raises :class:`JournalBusyError` where another process has cut or added in between.
        """
        batches = sa.update(t.batches).where(_waiting_batches(plan.stream, plan.last_seq))
        with writing(self._engine) as connection:
            cut = _begin(connection, plan)
            if connection.execute(batches.values(cut=cut.cut)).rowcount != plan.batches:
                raise JournalBusyError
        return cut

    def prepare_packed(self, plan: CutPlan, packed: PackedCut) -> JournalCut | None:
        """Accept the batches of *packed*, whose files lie in storage, and write down the cut that they are, at once.

        None, and nothing is changed, where one of them is known. Raises :class:`JournalBusyError` where another process
        has cut or added in between.
        """
        names = packed.members.names
        with writing(self._engine) as connection:
            if len(set(names)) < len(names) or known_roots(connection, plan.stream.log, names):
                return None
            cut = _begin(connection, plan)
            insert_packed(connection, plan.stream, cut.cut, packed)
        return cut

    def is_packed(self, cut: JournalCut) -> bool:
        """Whether the batch files of *cut*, which is not observed yet, lay in storage before it was written down."""
        if self._rows(sa.select(t.packed.c.cut).where(t.packed.c.cut == cut.cut)):
            return True
        # a cut that an earlier version wrote down has a payload without lines for each of its batches
        query = sa.select(sa.func.length(t.payloads.c.header)).join(t.batches, t.batches.c.seq == t.payloads.c.seq)
        rows = self._rows(query.where(t.batches.c.cut == cut.cut).limit(1))
        return bool(rows) and rows[0][0] == 0

    def members(self, cut: JournalCut) -> Sequence[str]:
        """The batch ids of *cut*."""
        rows = self._rows(sa.select(t.batches.c.batch).where(t.batches.c.cut == cut.cut))
        names = dict.fromkeys(row.batch for row in rows)
        with self._engine.connect() as connection:
            for _, members in packed_members(connection, t.members.c.cut == cut.cut):
                names |= dict.fromkeys(members.names)
        return list(names)

    def forget_anchored(self) -> None:
        """Forget all batches and rejects but those that wait, and begin all logs of batches anew.

        What was prepared and not observed yet waits again, if its messages are here. Other processes must not use the
        journal now.
        """
        underway = sa.select(t.cuts.c.cut).where(t.OPEN)
        complete = sa.select(t.payloads.c.seq).where(sa.func.length(t.payloads.c.header) > 0)
        waits = sa.and_(t.batches.c.cut.in_(underway), t.batches.c.reason.is_(None), t.batches.c.seq.in_(complete))
        waiting = sa.select(t.batches.c.seq).where(t.WAITING)
        with writing(self._engine) as connection:
            connection.execute(sa.update(t.batches).where(waits).values(cut=None))
            connection.execute(sa.update(t.rejects).where(t.rejects.c.cut.in_(underway)).values(cut=None))
            connection.execute(sa.delete(t.payloads).where(t.payloads.c.seq.not_in(waiting)))
            connection.execute(sa.delete(t.batches).where(~t.WAITING))
            connection.execute(sa.delete(t.rejects).where(t.rejects.c.cut.is_not(None)))
            connection.execute(sa.update(t.rejects).values(seq=0))  # places in the order of adding are used again
            for table in (t.cuts, t.packed, t.members, t.runs, t.pages):
                connection.execute(sa.delete(table))
            connection.execute(sa.update(t.feeds).values(last_id=0))

    def cut_count(self) -> int:
        """How many cuts were written down: fewer than there are anchors if the database was lost or restored."""
        return int(self._rows(sa.select(sa.func.count()).select_from(t.cuts))[0][0])

    def open_cuts(self) -> Sequence[JournalCut]:
        """The cuts that are not observed yet, oldest first."""
        columns = [t.cuts.c[name] for name in JournalCut.__struct_fields__]
        rows = self._rows(sa.select(*columns).where(t.OPEN).order_by(t.cuts.c.cut))
        return [msgspec.structs.replace(JournalCut(*row), state=BatchState(row.state)) for row in rows]

    def anchored(self, cut: JournalCut, anchor: int) -> JournalCut:
        """The ledger has the cut as entry number *anchor*."""
        mine = sa.update(t.cuts).where(t.cuts.c.cut == cut.cut, t.OPEN)
        with writing(self._engine) as connection:
            connection.execute(mine.values(state=BatchState.ANCHORED, anchor=anchor))
        return msgspec.structs.replace(cut, state=BatchState.ANCHORED, anchor=anchor)

    def observed(self, cut: JournalCut, refused: Mapping[str, str]) -> None:
        """The observer has read the cut back; *refused* gives the reasons of batches it found invalid. Payloads go,
        but for the message ids of those."""
        with writing(self._engine) as connection:
            if refused:
                refuse(connection, cut, refused)
            drop_payloads(connection, cut.cut)
            connection.execute(sa.update(t.cuts).where(t.cuts.c.cut == cut.cut).values(state=BatchState.OBSERVED))

    def status(self, log: str, batch: str) -> BatchStatus | None:
        """The status of a batch; None if it was never added."""
        query = sa.select(t.batches.c.reason, t.cuts.c.state, t.cuts.c.anchor).outerjoin_from(
            t.batches, t.cuts, t.batches.c.cut == t.cuts.c.cut
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query.where(t.batches.c.log == log, t.batches.c.batch == batch)).all()
            for packed in packed_by_name(connection, log, [batch]) if not rows else ():
                own = sa.select(sa.null(), t.cuts.c.state, t.cuts.c.anchor).where(t.cuts.c.cut == packed.cut)
                rows = connection.execute(own).all()
        return _status(*rows[0]) if rows else None

    def batch_of(self, log: str, message_id: int) -> str | None:
        """The batch that holds the message and is not observed, or was rejected; None where there is none."""
        query = sa.select(t.batches.c.batch, t.payloads.c.ids).join(t.payloads, t.batches.c.seq == t.payloads.c.seq)
        with self._engine.connect() as connection:
            for batch, ids in connection.execute(query.where(t.batches.c.log == log)):
                if message_id in np.frombuffer(ids, "<u8"):
                    return str(batch)
            for packed in packed_ids(connection, t.packed.c.log == log):
                if (place := packed.holder(message_id)) is not None:
                    for _, members in packed_members(connection, t.members.c.first == packed.first):
                        return members.names[place - packed.first]
                    # an earlier version wrote a row for each batch
                    return str(
                        connection.execute(sa.select(t.batches.c.batch).where(t.batches.c.seq == place)).scalar_one()
                    )
        return None

    def reject_reason(self, log: str, message_id: int) -> str | None:
        """The reason why the message was rejected; None if it was never rejected here."""
        query = sa.select(t.rejects.c.reason).where(t.rejects.c.log == log, t.rejects.c.id == message_id)
        return next((str(row.reason) for row in self._rows(query)), None)

    def rejected(self) -> Sequence[tuple[str, str, str]]:
        """All batches that were rejected: log, batch id, reason, in the order of adding."""
        query = sa.select(t.batches.c.log, t.batches.c.batch, t.batches.c.reason).where(t.batches.c.reason.is_not(None))
        return [(row.log, row.batch, row.reason) for row in self._rows(query.order_by(t.batches.c.seq))]

    def totals(self) -> JournalTotals:
        """The number of batches in each state."""
        columns = (t.batches.c.reason.is_not(None), t.cuts.c.state, sa.func.count())
        query = sa.select(*columns).outerjoin_from(t.batches, t.cuts, t.batches.c.cut == t.cuts.c.cut)
        counts = dict.fromkeys(map(str, BatchState), 0)
        for rejected, state, count in self._rows(query.group_by(*columns[:2])):
            counts[_status("" if rejected else None, state, None).state] += count
        size = total(t.members.c.last - t.members.c.first + 1)
        packed = sa.select(t.cuts.c.state, size).join(t.members, t.members.c.cut == t.cuts.c.cut)
        for state, count in self._rows(packed.group_by(t.cuts.c.state)):
            counts[state] += count
        refused = sa.select(t.cuts.c.state, sa.func.count()).join(t.members, t.members.c.cut == t.cuts.c.cut)
        refused = refused.join(t.batches, t.batches.c.cut == t.cuts.c.cut)
        for state, count in self._rows(refused.group_by(t.cuts.c.state)):
            counts[state] -= count  # they were counted as rejected
        waiting = self._rows(sa.select(sa.func.count()).select_from(t.rejects).where(t.rejects.c.cut.is_(None)))[0][0]
        return JournalTotals(**counts, waiting_rejects=waiting)

    def _parts(self, chosen: sa.ColumnElement[bool]) -> Iterator[BatchFilePart]:
        query = sa.select(t.payloads.c.header, t.payloads.c.lines, sa.func.length(t.payloads.c.ids))
        query = query.join(t.batches, t.batches.c.seq == t.payloads.c.seq).where(chosen)
        source: sa.ColumnElement[Any] = t.batches.c.source
        if self._engine.dialect.name in ("mysql", "mariadb"):  # where text is compared as if padded with spaces
            source = sa.cast(source, sa.LargeBinary)
        with self._engine.connect() as connection:
            for header, lines, size in connection.execute(query.order_by(t.batches.c.start, source, t.batches.c.batch)):
                yield BatchFilePart(header, lines, size // _ID_BYTES)

    def _rejects(self, chosen: sa.ColumnElement[bool], limit: int | None = None) -> Sequence[tuple[int, str]]:
        query = sa.select(t.rejects.c.id, t.rejects.c.reason).where(chosen)
        return [(row.id, row.reason) for row in self._rows(query.order_by(t.rejects.c.id).limit(limit))]

    def _rows(self, query: Any) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()


def _begin(connection: sa.Connection, plan: CutPlan) -> JournalCut:
    """The new cut of *plan*, with its rejects. Raises :class:`JournalBusyError` where another process was faster."""
    if connection.execute(sa.select(t.cuts.c.cut).where(t.OPEN)).first() is not None:
        raise JournalBusyError
    values = (plan.stream.stream, BatchState.CUT, plan.anchor_string, plan.manifest, plan.ledger_after)
    insert = sa.insert(t.cuts).values(dict(zip(JournalCut.__struct_fields__[1:-1], values, strict=True)))
    cut = int(connection.execute(insert).inserted_primary_key[0])  # type: ignore[index]
    rejects = sa.update(t.rejects).where(
        _waiting_rejects(plan.stream, plan.last_seq), t.rejects.c.id <= plan.last_reject
    )
    if connection.execute(rejects.values(cut=cut)).rowcount != plan.rejects:
        raise JournalBusyError
    return JournalCut(cut, *values, anchor=None)


def _waiting_batches(stream: BatchStream, last_seq: int) -> sa.ColumnElement[bool]:
    return sa.and_(t.WAITING, t.batches.c.stream == stream.stream, t.batches.c.seq <= last_seq)


def _waiting_rejects(stream: BatchStream, last_seq: int) -> sa.ColumnElement[bool]:
    return sa.and_(t.rejects.c.cut.is_(None), t.rejects.c.stream == stream.stream, t.rejects.c.seq <= last_seq)


def _status(reason: str | None, state: str | None, anchor: int | None) -> BatchStatus:
    if reason is not None:
        return BatchStatus(BatchState.REJECTED, anchor, reason)
    return BatchStatus(BatchState(state) if state else BatchState.ACCEPTED, anchor)
