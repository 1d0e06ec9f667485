"""The signed ledgers: how far each is signed, cosigned by witnesses, and published."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.errors import NotFoundError
from millstream.node.ledger_trees import LEDGERS, LedgerName
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing
from millstream.status.ledger_status import (
    Cosignature,
    LedgerStatus,
    WitnessStatus,
    ledger_status,
)

endpoints = EndpointRegistry()


class LedgerNotBegunError(NotFoundError):
    """The ledger has no entry yet."""


class LedgerQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger of event batches (``anchors``), of integrity reports, or of identifiers (``registry``)."""

    ledger: LedgerName


class LedgerRow(msgspec.Struct, frozen=True):
    """How far the ledger ``ledger`` is: its entries, those that are signed, those that the quorum of witnesses has
    cosigned (None without witnesses), and how many cosignatures the newest offered checkpoint misses.
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
        raise LedgerNotBegunError(f"the ledger {name} has no entry yet; `/ledgers` lists those that have")
    return ledger_status(app.node, name)


@endpoints.get("/ledgers/{ledger}/witnesses", LedgerQuery)
def witnesses(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> Listing[WitnessStatus]:
    """List the witnesses of a ledger, and how each answered last."""
    rows = ledger(app, request).witnesses
    return Listing(rows, total=len(rows))


@endpoints.get("/ledgers/{ledger}/cosignatures", LedgerQuery)
def ledger_cosignatures(app: AppContext, request: ApiRequest[LedgerQuery, Any]) -> Listing[Cosignature]:
    """List the cosignatures of the newest checkpoint with the quorum of witnesses."""
    cosigned = ledger(app, request).cosigned
    rows = cosigned.cosignatures if cosigned else ()
    return Listing(rows, total=len(rows))
