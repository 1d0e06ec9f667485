"""The node itself: who works on it, its settings, its versions, its health, and the trail of what was done."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from millstream import __version__
from millstream.console_settings import HIDDEN, SECRETS
from millstream.log.database.place import masked
from millstream.messaging.broker.admin import GroupInfo
from millstream.queue import queue_name
from millstream.rest.desk import Desk
from millstream.rest.endpoint import Ask, Endpoints, Limit, Listing, Number
from millstream.rest.trail import TrailEvent
from millstream.settings import readable

endpoints = Endpoints()

_PACKAGES = (
    "pyarrow", "numpy", "msgspec", "sqlalchemy", "starlette", "uvicorn", "grpcio", "protobuf", "boto3", "PyMySQL",
    "psycopg", "pika", "paho-mqtt", "coincurve", "pyspark",
)  # fmt: skip


class WorkerRow(msgspec.Struct, frozen=True):
    """A process, or a client of the broker, that works on something: who it is, and what it holds or consumes."""

    who: str
    kind: str
    on: str
    detail: str


class PoolRow(msgspec.Struct, frozen=True):
    """A queue that workers empty: how many there should be, for autoscalers, and how much is in hands and waits."""

    queue: str
    desired_workers: int
    leased: int
    waiting: int


class SettingRow(msgspec.Struct, frozen=True):
    """One setting, its value as text (secrets are hidden), and where it came from."""

    setting: str
    value: str
    origin: str


class StoreRow(msgspec.Struct, frozen=True):
    """A store and where it lies, without secrets; ``audited``: its changes are written to an audit log."""

    store: str
    url: str
    audited: bool


class PackageRow(msgspec.Struct, frozen=True):
    """The version of one part; None where it is not installed."""

    name: str
    version: str | None


class Health(msgspec.Struct, frozen=True):
    """``ready``: whether the log store and the database answer; ``problems`` says what does not."""

    ready: bool
    problems: Mapping[str, str] = {}


class TrailQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events with numbers below ``before``; only those ``about`` one thing (``queue audit``) and its parts."""

    before: Number | None = None
    about: str | None = None
    limit: Limit = 100


@endpoints.get("/workers")
def workers(desk: Desk, _ask: Ask[Any, Any]) -> Listing[WorkerRow]:
    """List who works on this node: writers of logs and queues, and groups of consumers."""
    rows = [
        WorkerRow(row.writer, "queue" if row.kind == "queue" else "writer", queue_name(row.log), row.kind)
        for row in desk.watch.survey.logs
        if row.writer
    ]
    if desk.broker is not None:
        for group in desk.broker.ask("Groups", "", list[GroupInfo]):
            detail = f"{group.consumers:,} connected, {group.in_flight:,} in flight, {group.lag:,} to come"
            rows.append(WorkerRow(group.group, "group", group.topic, detail))
    return Listing(rows, total=len(rows))


@endpoints.get("/workers/pools")
def pools(desk: Desk, _ask: Ask[Any, Any]) -> Listing[PoolRow]:
    """List how many workers each queue should have."""
    rows = [
        PoolRow(row.queue, row.desired_workers, row.leased, row.ready + row.delayed)
        for row in desk.watch.queues()
        if row.desired_workers is not None
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/stores")
def stores(desk: Desk, _ask: Ask[Any, Any]) -> Listing[StoreRow]:
    """List the stores that policies may name."""
    settings = desk.node.settings
    rows = [
        StoreRow(name, masked(url), name in settings.stores and settings.stores[name].audited)
        for name, url in settings.store_urls.items()
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/system/settings")
def settings(desk: Desk, _ask: Ask[Any, Any]) -> Listing[SettingRow]:
    """List every setting with its origin; secrets are hidden."""
    rows = list(setting_rows(readable(desk.node.settings), desk.origins))
    return Listing(rows, total=len(rows))


@endpoints.get("/system/versions")
def versions(_desk: Desk, _ask: Ask[Any, Any]) -> Listing[PackageRow]:
    """List the versions of what this node runs on."""
    rows = [
        PackageRow("millstream", __version__),
        PackageRow("Python", platform.python_version()),
        PackageRow("SQLite", sqlite3.sqlite_version),
        *[PackageRow(name, _installed(name)) for name in _PACKAGES],
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/system/health")
def health(desk: Desk, _ask: Ask[Any, Any]) -> Health:
    """Whether the parts of this node answer."""
    return look_at_health(desk)


@endpoints.get("/system/trail", TrailQuery)
def trail(desk: Desk, ask: Ask[TrailQuery, Any]) -> Listing[TrailEvent]:
    """List what was done through the console and this interface, the latest first."""
    found = desk.trail.last(ask.query.limit + 1, ask.query.before, ask.query.about)
    rows = found[: ask.query.limit]
    return Listing(rows, str(rows[-1].number) if len(found) > ask.query.limit else None)


def look_at_health(desk: Desk) -> Health:
    """Ask the log store and the database for something small."""
    import sqlalchemy as sa

    from millstream.core.errors import MillstreamError

    problems: dict[str, str] = {}
    try:
        desk.node.store.logs()
    except MillstreamError as error:
        problems["log store"] = str(error)
    try:
        desk.batches.last_number()
    except sa.exc.SQLAlchemyError as error:
        problems["database"] = str(error).partition("\n")[0]
    return Health(not problems, problems)


def setting_rows(values: Mapping[str, Any], origins: Mapping[str, str], path: str = "") -> Iterator[SettingRow]:
    """The leaves of nested settings, as :func:`readable` has them, by their dotted names; secrets are hidden."""
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            yield from setting_rows(value, origins, f"{name}.")
            continue
        if key in SECRETS and value:
            text = HIDDEN
        elif isinstance(value, str):
            text = masked(value)
        else:
            text = msgspec.json.encode(value).decode("utf-8")
        yield SettingRow(name, text, origins.get(name, "default"))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
