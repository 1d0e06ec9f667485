"""The state of a registry that follows the ledger of another one: one row, for every process of its database."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.errors import FollowError, ReadOnlyError
from millstream.core.sql import has_table
from millstream.core.sql_rows import DriverQuery, insert_new

_row = t.following
_FOLLOWED = DriverQuery(sa.select(_row.c.ledger).where(_row.c.begun))
_ID = 1


class FollowState(msgspec.Struct, frozen=True):
    """The ledger that is followed, and how far: entry ``position`` is the last one observed, ``behind`` entries were
    there after it when the ledger was last read, at ``checked_at`` (microseconds).

    ``chain`` says whether the ledger's entries are sealed by hashes, ``error`` what went wrong last time, None where
    nothing did. ``profile`` and ``method`` are the rules of the network and its DID method.
    """

    ledger: str
    profile: str
    method: str
    position: int
    behind: int
    chain: bool | None
    checked_at: int | None
    error: str | None


def follow_state(connection: sa.Connection, *, pending: bool = False) -> FollowState | None:
    """The state of the registry in this database, None where it follows no other registry. The tables may be absent.

    With *pending* also that of one which has read no entry yet.
    """
    if not has_table(connection, _row.name):
        return None
    row = connection.execute(sa.select(_row)).first()
    if row is None or not (row.begun or pending):
        return None
    position = connection.scalar(sa.select(sa.func.max(t.anchors.c.number))) or 0
    facts = (row.ledger, row.profile, row.method, int(position), row.behind)
    return FollowState(*facts, row.chain, row.checked_at, row.error)


def begin(connection: sa.Connection, ledger: str, profile: str, method: str, *, claim: bool) -> None:
    """This registry is going to follow *ledger* in the network of *profile* and *method*.

    With *claim*, which comes with the first entry, the registry accepts no more operations.

    Raises :class:`FollowError` where it has operations of its own, or follows another network.
    """
    names = {"ledger": ledger, "profile": profile, "method": method}
    locked = sa.select(_row).with_for_update()  # another process may begin now
    row = connection.execute(locked).first()
    if row is None:  # nothing was locked
        connection.execute(insert_new(connection, _row).values(id=_ID, behind=0, begun=False, **names))
        row = connection.execute(locked).one()
    if row.begun and (row.profile, row.method) != (profile, method):
        raise FollowError(
            f"the database of this registry follows a network of the profile {row.profile!r} with the DID method "
            f"{row.method!r}, not {profile!r} with {method!r}: use another node (--data) or database for that network"
        )
    _refuse_own(connection, observed=row.begun)
    connection.execute(sa.update(_row).values(begun=claim or row.begun, **names))


def save(connection: sa.Connection, now: int, *, behind: int, chain: bool | None, error: str | None) -> None:
    """The ledger was read at *now*, as far as it could be."""
    values = {"behind": behind, "chain": chain, "checked_at": now, "error": error and error[:2000]}
    connection.execute(sa.update(_row).values(**values))


def refuse_if_following(connection: sa.Connection) -> None:
    """Raise :class:`ReadOnlyError` where the registry in this database follows another one."""
    for (ledger,) in _FOLLOWED.rows(connection):
        raise read_only(ledger)


def read_only(ledger: str) -> ReadOnlyError:
    """The error for operations that are sent to a registry which follows *ledger*."""
    return ReadOnlyError(
        f"this registry follows the ledger {ledger} and accepts no operations: send the operations to the registry "
        "that writes that ledger"
    )


def _refuse_own(connection: sa.Connection, *, observed: bool) -> None:
    own = [t.operations, t.cuts] if observed else [t.operations, t.cuts, t.anchors]
    for table in own:
        if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
            raise FollowError(
                "this registry has operations of its own and cannot follow another ledger: use another node (--data) "
                "or database to follow that ledger"
            )
