"""The cosignatures that a ledger has, and how its witnesses answered, in the node's database."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from millstream.anchoring.database import metadata
from millstream.anchoring.errors import NoteError
from millstream.anchoring.transparency.policy import TrustPolicy, cosigning_witnesses
from millstream.anchoring.transparency.signed_note import MAX_SIGNATURES, SignedNote, encode_note, parse_note
from millstream.core.column_types import EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import put_row

_cosigned = sa.Table(
    "anchor_cosigned",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("complete", sa.Boolean, primary_key=True),
    sa.Column("data", LONG_BYTES, nullable=False),
    sa.Column("size", WHOLE_NUMBER, nullable=False),
    sa.Column("started_at", WHOLE_NUMBER, nullable=False),
    sa.Column("completed_at", WHOLE_NUMBER),
)
_witnesses = sa.Table(
    "anchor_witnesses",
    metadata,
    sa.Column("ledger", NAME, primary_key=True),
    sa.Column("witness", NAME, primary_key=True),
    sa.Column("known_size", WHOLE_NUMBER, nullable=False),
    sa.Column("asked_at", WHOLE_NUMBER, nullable=False),
    sa.Column("answered_at", WHOLE_NUMBER),
    sa.Column("problem", EXACT_LONG_TEXT),
    sa.Column("is_fork", sa.Boolean, nullable=False),
    sa.Column("is_refusal", sa.Boolean),
)


class CosignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of ``size`` entries with the signatures that it has (``data``, a signed note).

    ``started_at`` is when it was first offered to witnesses, ``completed_at`` when it had their quorum (microseconds).
    """

    data: bytes
    size: int
    started_at: int
    completed_at: int | None = None


class WitnessRecord(msgspec.Struct, frozen=True):
    """How a witness answered last: ``known_size`` is the size that it cosigned, ``problem`` why it did not (None: it
    did). ``is_fork`` says that its tree and the ledger's differ, ``is_refusal`` that it answered and refused (None: not
    recorded by an earlier version). Times are microseconds; ``answered_at`` is that of the last cosignature.
    """

    known_size: int
    asked_at: int
    answered_at: int | None = None
    problem: str | None = None
    is_fork: bool = False
    is_refusal: bool | None = None


class CosignatureTable:
    """The cosigned checkpoints of *ledger*: the newest with a quorum, and the one that is being collected."""

    def __init__(self, engine: sa.Engine, ledger: str) -> None:
        self._engine = engine
        self.ledger = ledger
        make_tables(engine, metadata, [_cosigned, _witnesses])

    def complete(self) -> CosignedCheckpoint | None:
        """The newest checkpoint that had the quorum, None before the first."""
        with self._engine.connect() as connection:
            return self._row(connection, complete=True)

    def collecting(self) -> CosignedCheckpoint | None:
        """The checkpoint that was offered last, with what has signed it; it may be the complete one."""
        with self._engine.connect() as connection:
            return self._row(connection, complete=False)

    def start(self, before: CosignedCheckpoint | None, checkpoint: CosignedCheckpoint) -> bool:
        """Collect signatures for *checkpoint* from now on; false where another process has replaced *before*."""
        with writing(self._engine) as connection:
            if self._row(connection, complete=False) != before:
                return False
            self._put(connection, checkpoint, complete=False)
            return True

    def add(self, signed: SignedNote, policy: TrustPolicy, now: int) -> CosignedCheckpoint | None:
        """Add the signatures of *signed* to the checkpoint of the same text; None where that is not collected any more.

        Of each key the last one is kept, and nothing is added beyond what a note may have. Once the quorum of
        *policy* has signed, the checkpoint is complete.
        """
        with writing(self._engine) as connection:
            row = self._row(connection, complete=False)
            note = parse_note(row.data) if row else None
            if row is None or note is None or note.text != signed.text:
                return None
            signatures = {(each.name, each.key_id): each for each in (*note.signatures, *signed.signatures)}
            if len(signatures) > MAX_SIGNATURES:
                return row
            merged = SignedNote(note.text, tuple(signatures.values()))
            is_complete = not policy.missing(cosigning_witnesses(merged, policy))
            done = (row.completed_at or now) if is_complete else None
            row = CosignedCheckpoint(encode_note(merged), row.size, row.started_at, done)
            self._put(connection, row, complete=False)
            if is_complete:
                self._put(connection, row, complete=True)
            return row

    def witnesses(self) -> dict[str, WitnessRecord]:
        """How the witnesses answered last, by name."""
        columns = [column for column in _witnesses.c if column.name != "ledger"]
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).where(_witnesses.c.ledger == self.ledger))
            return {name: WitnessRecord(*values) for name, *values in rows}

    def put_witness(self, name: str, record: WitnessRecord) -> None:
        """Keep how the witness *name* answered."""
        values = {**msgspec.structs.asdict(record), "ledger": self.ledger, "witness": name}
        with writing(self._engine) as connection:
            put_row(connection, _witnesses, values)

    def _row(self, connection: sa.Connection, *, complete: bool) -> CosignedCheckpoint | None:
        columns = [_cosigned.c[name] for name in CosignedCheckpoint.__struct_fields__]
        row = connection.execute(
            sa.select(*columns).where(_cosigned.c.ledger == self.ledger, _cosigned.c.complete == complete)
        ).one_or_none()
        return None if row is None or not _is_note(row.data) else CosignedCheckpoint(*row)

    def _put(self, connection: sa.Connection, row: CosignedCheckpoint, *, complete: bool) -> None:
        put_row(connection, _cosigned, {**msgspec.structs.asdict(row), "ledger": self.ledger, "complete": complete})


def _is_note(data: bytes) -> bool:
    """Whether *data* can be read: an earlier version stored more signatures than a note may have."""
    try:
        parse_note(data)
    except NoteError:
        return False
    return True
