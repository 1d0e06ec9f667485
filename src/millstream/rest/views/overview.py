"""The whole road, and its last minutes."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.rest.desk import Desk
from millstream.rest.endpoint import Ask, Endpoints, Listing
from millstream.rest.figures import Fault, Overview, Sample

endpoints = Endpoints()


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``coarse``: one sample a minute of the last day; else one every two seconds of the last half hour."""

    coarse: bool = False


@endpoints.get("/overview")
def overview(desk: Desk, _ask: Ask[Any, Any]) -> Overview:
    """The whole road: log, batches, anchors, copies, checks, queues, and what is not well."""
    return desk.watch.overview()


@endpoints.get("/overview/faults")
def faults(desk: Desk, _ask: Ask[Any, Any]) -> Listing[Fault]:
    """What is not well, the worst first."""
    found = desk.watch.overview().faults
    return Listing(found, total=len(found))


@endpoints.get("/overview/history", HistoryQuery)
def history(desk: Desk, ask: Ask[HistoryQuery, Any]) -> Listing[Sample]:
    """The counters of the last minutes, or of the last day."""
    found = desk.watch.history(coarse=ask.query.coarse)
    return Listing(found, total=len(found))
