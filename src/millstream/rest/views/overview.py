"""The state of each step, from logs to checks, and its last minutes."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing
from millstream.status.models import Fault, Overview, Sample
from millstream.status.verdict.models import Verdict

endpoints = EndpointRegistry()


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``coarse``: one sample per minute of the last day; otherwise one per two seconds of the last half hour."""

    coarse: bool = False


@endpoints.get("/overview")
def overview(app: AppContext, _ask: ApiRequest[Any, Any]) -> Overview:
    """Show the overview: log, batches, anchors, copies, checks, queues, and problems."""
    return app.poller.overview()


@endpoints.get("/overview/verdict")
def verdict(app: AppContext, _ask: ApiRequest[Any, Any]) -> Verdict:
    """List the issues of the node, the most severe first, and what is unknown."""
    return app.poller.verdict()


@endpoints.get("/overview/faults")
def faults(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[Fault]:
    """List the problems, the worst first."""
    found = app.poller.overview().faults
    return Listing(found, total=len(found))


@endpoints.get("/overview/history", HistoryQuery)
def history(app: AppContext, request: ApiRequest[HistoryQuery, Any]) -> Listing[Sample]:
    """Show the counters of the last half hour, or of the last day."""
    found = app.poller.history(coarse=request.query.coarse)
    return Listing(found, total=len(found))
