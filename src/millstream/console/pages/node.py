"""The pages of the node: overview, workers, the audit log of operators, the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest
from millstream.console.rendering import idle_since
from millstream.core.clock import MICROSECONDS
from millstream.rest.views import system
from millstream.status.models import Sample
from millstream.status.snapshot import LOGS

_SHOWN_LAGS = 8


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/", pages.show("overview.html", overview)),
        Route("/workers", pages.show("workers.html", show_workers)),
        Route("/audit", pages.show("audit.html", show_audit_log)),
        Route("/system", pages.show("system.html", show_system)),
    ]


def overview(call: PageRequest) -> Mapping[str, Any]:
    """The state of each step at a glance."""
    coarse = call.query.get("past") == "day"
    samples = call.app.poller.history(coarse=coarse)
    shown, snapshot = call.app.poller.overview(), call.app.poller.snapshot
    return {
        "coarse": coarse,
        "o": shown,
        "lags": [lag for lag in snapshot.lags if lag.lag][:_SHOWN_LAGS],
        "lags_known": snapshot.knows(LOGS, *snapshot.unreadable_logs),
        "unreadable_queues": call.app.poller.unreadable_queues,
        "rates": rates(samples),
        "open_tasks": [sample.open_tasks for sample in samples],
        "idle_since": {
            "rate": idle_since(samples, [one.messages - samples[0].messages for one in samples]),
            "tasks": idle_since(samples, [one.open_tasks + one.dead_tasks for one in samples]),
        },
    }


def show_workers(call: PageRequest) -> Mapping[str, Any]:
    """The workers, and the recommended number."""
    return {
        "workers": system.workers(call.app, call.ask()),
        "pools": system.pools(call.app, call.ask()),
    }


def show_audit_log(call: PageRequest) -> Mapping[str, Any]:
    """The operator audit log, the latest entry first."""
    query = call.ask(system.OperatorAuditQuery)
    found = system.operator_audit_log(call.app, query)
    return {"audit": found, **{name: call.query.get(name) for name in ("before", "about", "target", "user")}}


def show_system(call: PageRequest) -> Mapping[str, Any]:
    """Health, disks, settings and versions."""
    app, snapshot = call.app, call.app.poller.snapshot
    settings = system.settings(app, call.ask()).items
    defaults = groupby((row for row in settings if row.origin == "default"), lambda row: row.setting.partition(".")[0])
    return {
        "health": system.health(app, call.ask()),
        "verdict": app.poller.verdict(),
        "settings": settings,
        "defaults": {section: list(rows) for section, rows in defaults},
        "versions": system.versions(app, call.ask()).items,
        "disks": system.disks(app, call.ask()).items,
        "usage": system.usage(app, call.ask()).items,
        "whole_folder": str(app.node.folder),
        "started_at": app.started_at,
        "status_snapshot_seconds": snapshot.seconds,
        "users": list(app.settings.users),
    }


def rates(samples: Sequence[Sample]) -> Sequence[float]:
    """Messages a second between *samples*."""
    return [
        max(0, after.messages - before.messages) / max((after.at - before.at) / MICROSECONDS, 0.001)
        for before, after in pairwise(samples)
    ]
