"""The signed ledgers: how far each is signed, cosigned by witnesses, and published."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from millstream.anchoring.http_reader import redacted_url
from millstream.anchoring.transparency.cosignatures import Cosignature
from millstream.core.errors import NotFoundError
from millstream.node.ledger_trees import LEDGERS, LedgerName
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Limit, Listing, Number
from millstream.status.ledger_status import LedgerStatus, WitnessStatus, ledger_status
from millstream.status.snapshot import UnreadablePartError

endpoints = EndpointRegistry()


class LedgerNotBegunError(NotFoundError):
    """The ledger has no entry yet."""


class LedgerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger of event batches (``anchors``), of integrity reports, or of identifiers (``registry``)."""

    ledger: LedgerName


class TimestampsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time stamps of ``ledger``, the newest first, with numbers less than ``before``."""

    ledger: LedgerName
    before: Annotated[Number, msgspec.Meta(description="`next` of the previous page")] | None = None
    limit: Limit = 50


class LedgerTimestamp(msgspec.Struct, frozen=True, kw_only=True):
    """A time stamp of a checkpoint of ``size`` entries, or of the first ``renews`` time stamps of the ledger.

    It was made by ``authority`` (its URL; ``name`` is the subject of the certificate that signed it), not later than
    ``time``, and can be verified until ``ends_at``. ``document`` was stamped, ``token`` is the answer: both are CIDs.
    """

    number: int
    size: int | None
    renews: int | None
    time: int
    name: str
    ends_at: int
    authority: str
    document: str
    token: str


class TimestampAuthorityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a time-stamping authority answered last; ``problem`` is None if it gave a time stamp."""

    authority: str
    asked_at: int
    answered_at: int | None
    problem: str | None


class LedgerRow(msgspec.Struct, frozen=True):
    """How far the ledger ``ledger`` is: its entries, those that are signed, those that the quorum of witnesses has
    cosigned (None without witnesses, and if their policy cannot be read), and how many cosignatures the newest offered
    checkpoint misses.
    """

    ledger: str
    entries: int
    signed: int | None
    cosigned: int | None
    missing: int
    problem: str | None


@endpoints.get("/ledgers")
def ledgers(app: AppContext, _request: ApiRequest[Any, Any]) -> Listing[LedgerRow]:
    """List the ledgers of the node that were begun."""
    rows = [ledger_status(app.node, name) for name in LEDGERS if app.node.ledgers.has(name)]
    return Listing(
        [
            LedgerRow(
                ledger=row.ledger,
                entries=row.entries,
                signed=row.signed,
                cosigned=None if row.quorum is None else row.cosigned.size if row.cosigned else 0,
                missing=row.missing,
                problem=row.problem,
            )
            for row in rows
        ],
        total=len(rows),
    )


@endpoints.get("/ledgers/{ledger}", LedgerQuery)
def ledger(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> LedgerStatus:
    """Show the newest checkpoint of a ledger, its cosignatures, and how its witnesses answered."""
    name = request.query.ledger
    if not app.node.ledgers.has(name):
        raise LedgerNotBegunError(f"the ledger {name} has no entry yet; `/ledgers` lists the ledgers that have entries")
    return ledger_status(app.node, name)


@endpoints.get("/ledgers/{ledger}/witnesses", LedgerQuery)
def witnesses(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> Listing[WitnessStatus]:
    """List the witnesses of a ledger, and how each answered last."""
    rows = _with_policy(ledger(app, request)).witnesses
    return Listing(rows, total=len(rows))


@endpoints.get("/ledgers/{ledger}/cosignatures", LedgerQuery)
def ledger_cosignatures(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> Listing[Cosignature]:
    """List the cosignatures of the newest checkpoint with the quorum of witnesses."""
    cosigned = _with_policy(ledger(app, request)).cosigned
    rows = cosigned.cosignatures if cosigned else ()
    return Listing(rows, total=len(rows))


def _with_policy(status: LedgerStatus) -> LedgerStatus:
    """*status*. Raises :class:`UnreadablePartError` if it does not know the witnesses."""
    if status.policy_problem is not None:
        raise UnreadablePartError(f"the witness policy cannot be read: {status.policy_problem}")
    return status


@endpoints.get("/ledgers/{ledger}/timestamps", TimestampsQuery)
def ledger_timestamps(app: AppContext, request: ApiRequest[TimestampsQuery, Any]) -> Listing[LedgerTimestamp]:
    """List the time stamps of a ledger, the newest first."""
    query = request.query
    every = app.node.ledgers.timestamps.table(query.ledger).records()
    older = [record for record in reversed(every) if query.before is None or record.number < query.before]
    names = [name for name in LedgerTimestamp.__struct_fields__ if name != "authority"]
    rows = [
        LedgerTimestamp(**{name: getattr(record, name) for name in names}, authority=redacted_url(record.authority))
        for record in older[: query.limit]
    ]
    return Listing(rows, str(rows[-1].number) if len(older) > len(rows) else None, total=len(every))


@endpoints.get("/ledgers/{ledger}/authorities", LedgerQuery)
def timestamp_authorities(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> Listing[TimestampAuthorityStatus]:
    """List the time-stamping authorities that a ledger was sent to, and how each answered last."""
    found = app.node.ledgers.timestamps.table(request.query.ledger).authorities()
    rows = [
        TimestampAuthorityStatus(authority=redacted_url(url), **msgspec.structs.asdict(record))
        for url, record in sorted(found.items())
    ]
    return Listing(rows, total=len(rows))
