"""The node itself: who works on it, its settings, its versions, its health, and the operator audit log."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millstream import __version__
from millstream.core.secrets import safe_url
from millstream.messaging.broker.admin import GROUPS
from millstream.queue import queue_name
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import (
    ApiRequest,
    EndpointRegistry,
    Limit,
    Listing,
    Number,
    PartialListing,
    partial_listing,
)
from millstream.rest.operator_audit_log import OperatorAuditEvent
from millstream.settings import readable, redacted
from millstream.status.disk_usage import Disk, Usage
from millstream.status.snapshot import LOGS

endpoints = EndpointRegistry()

_PACKAGES = (
    "pyarrow", "numpy", "msgspec", "sqlalchemy", "starlette", "uvicorn", "uvloop", "grpcio", "protobuf", "boto3",
    "PyMySQL", "psycopg", "pika", "paho-mqtt", "coincurve", "pyspark",
)  # fmt: skip


class WorkerRow(msgspec.Struct, frozen=True):
    """A process or a broker client at work: its name, and the logs, queues or topics that it writes or consumes."""

    who: str
    kind: str
    on: str
    detail: str


class PoolRow(msgspec.Struct, frozen=True):
    """A queue of the mill: recommended workers (for autoscalers), tasks in progress, and waiting tasks."""

    queue: str
    desired_workers: int
    leased: int
    waiting: int


class SettingRow(msgspec.Struct, frozen=True):
    """A setting, its value as text (secrets are hidden), and its origin."""

    setting: str
    value: str
    origin: str


class StoreRow(msgspec.Struct, frozen=True):
    """A store and its location, without secrets; ``audited`` means that its changes are recorded in an audit log."""

    store: str
    url: str
    audited: bool


class PackageRow(msgspec.Struct, frozen=True):
    """The version of a component; None if it is not installed."""

    name: str
    version: str | None


class Health(msgspec.Struct, frozen=True):
    """``ready``: whether the log store and the databases answer; ``problems`` lists what does not."""

    ready: bool
    problems: Mapping[str, str] = {}


class OperatorAuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events with numbers below ``before``; with ``about``, only those whose action or object contains that text, in
    small or capital letters; with ``target``, only those about one object (``queue audit``) and its parts; with
    ``user``, only those of one user.
    """

    before: Number | None = None
    about: str | None = None
    target: str | None = None
    user: str | None = None
    limit: Limit = 100


@endpoints.get("/workers")
def workers(app: AppContext, _ask: ApiRequest[Any, Any]) -> PartialListing[WorkerRow]:
    """List the writers of logs and queues, and the consumer groups."""
    snapshot = app.poller.snapshot
    snapshot.require(LOGS)
    rows = [
        WorkerRow(row.writer, "queue" if row.kind == "queue" else "writer", queue_name(row.log), row.kind)
        for row in snapshot.logs
        if row.writer
    ]
    if app.broker is not None:
        for group in app.broker.ask(GROUPS, ""):
            detail = f"{group.consumers:,} connected, {group.in_flight:,} in flight, lag {group.lag:,}"
            rows.append(WorkerRow(group.group, "group", group.topic, detail))
    return partial_listing(rows, snapshot.unreadable_logs)


@endpoints.get("/workers/pools")
def pools(app: AppContext, _ask: ApiRequest[Any, Any]) -> PartialListing[PoolRow]:
    """List the recommended workers of each queue."""
    rows = [
        PoolRow(row.queue, row.desired_workers, row.leased, row.ready + row.delayed)
        for row in app.poller.queues()
        if row.desired_workers is not None
    ]
    return partial_listing(rows, app.poller.unreadable_queues)


@endpoints.get("/stores")
def stores(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[StoreRow]:
    """List the stores that policies may name."""
    settings = app.node.settings
    rows = [
        StoreRow(name, safe_url(url), name in settings.stores and settings.stores[name].audited)
        for name, url in settings.store_urls.items()
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/system/settings")
def settings(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[SettingRow]:
    """List every setting with its origin; secrets are hidden."""
    rows = list(setting_rows(readable(redacted(app.node.settings)), app.origins))
    return Listing(rows, total=len(rows))


@endpoints.get("/system/disks")
def disks(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[Disk]:
    """List the disks of the node, first the one that will be full first at the rate of the last day."""
    found = app.poller.disks()
    return Listing(found, total=len(found))


@endpoints.get("/system/usage")
def usage(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[Usage]:
    """List the disk usage of the parts of the node, first the one that grew most in the last day."""
    found = app.poller.usage()
    return Listing(found, total=len(found))


@endpoints.get("/system/versions")
def versions(_app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[PackageRow]:
    """List the versions of the software that this node uses."""
    rows = [
        PackageRow("millstream", __version__),
        PackageRow("Python", platform.python_version()),
        PackageRow("SQLite", sqlite3.sqlite_version),
        *[PackageRow(name, _installed(name)) for name in _PACKAGES],
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/system/health")
def health(app: AppContext, _ask: ApiRequest[Any, Any]) -> Health:
    """Show whether the parts of this node answer."""
    return look_at_health(app)


@endpoints.get("/system/audit-log", OperatorAuditQuery)
def operator_audit_log(app: AppContext, request: ApiRequest[OperatorAuditQuery, Any]) -> Listing[OperatorAuditEvent]:
    """List the operator audit log (actions in the console and this interface), the latest first."""
    query = request.query
    found = app.operator_log.last(
        query.limit + 1, query.before, about=query.about, target=query.target, user=query.user
    )
    rows = found[: query.limit]
    return Listing(rows, str(rows[-1].number) if len(found) > query.limit else None)


def look_at_health(app: AppContext) -> Health:
    """Ask the log store and the databases for something small."""
    import sqlalchemy as sa

    from millstream.core.errors import MillstreamError

    problems: dict[str, str] = {}
    try:
        app.node.logs.store.logs()
    except MillstreamError as error:
        problems["log store"] = str(error)
    try:
        app.batches.last_number()
    except (sa.exc.SQLAlchemyError, MillstreamError) as error:
        problems["database"] = str(error).partition("\n")[0]
    registry = app.node.settings.registry.database
    if registry and (problem := _registry_problem(app, registry)):
        problems["database of the registry"] = problem
    return Health(not problems, problems)


_looking = threading.Lock()
_LOOK_SECONDS = 1.0


def _registry_problem(app: AppContext, url: str) -> str:
    """Why the registry's database at *url* cannot be used; empty if it answers. One look at a time: a server that does
    not answer holds one thread, and all other probes are told so soon."""
    import sqlalchemy as sa

    from millstream.core.errors import MillstreamError
    from millstream.core.retry import NO_RETRY
    from millstream.core.sql import reading, waiting_with

    if not _looking.acquire(timeout=_LOOK_SECONDS):
        return "it has not answered an earlier look yet"
    try:
        with waiting_with(NO_RETRY), reading(app.node.databases.at(url)) as connection:
            connection.execute(sa.select(1))
    except (sa.exc.SQLAlchemyError, MillstreamError) as error:
        return str(error).partition("\n")[0]
    finally:
        _looking.release()
    return ""


def setting_rows(values: Mapping[str, Any], origins: Mapping[str, str], path: str = "") -> Iterator[SettingRow]:
    """The leaves of nested settings, as :func:`readable` has them, by their dotted names."""
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            yield from setting_rows(value, origins, f"{name}.")
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8")
        yield SettingRow(name, text, origins.get(name, "default"))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
