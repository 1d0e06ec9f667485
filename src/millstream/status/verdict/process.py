"""Facts about the process that serves a node: its certificates, alarms and brokers, and other processes of the node."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from millstream.core.errors import MillstreamError
from millstream.core.secrets import read_password
from millstream.core.url_schemes import scheme_of
from millstream.log import LogError, LogNotFoundError, LogSpec
from millstream.log.runtime.writer_refusals import WriterRefusal
from millstream.mill.workers.monitor import UndeliveredAlarm
from millstream.node import Node
from millstream.settings import Settings
from millstream.status.disk_usage import own_folders
from millstream.status.serving_node import ServingNode, serving_nodes
from millstream.status.verdict.certificates import CertificateExpiry, certificate_expiries
from millstream.status.verdict.store_watch import write_refusal
from millstream.stores.audit.holders import Holders, process_of

_SECONDS = 3.0
_LASTING_WRITERS = frozenset({"broker", "batching", "ledger"})
"""The producers of a process that serves a node which write for as long as it runs. Who is refused otherwise is told at
once, or waits on purpose, such as a relay that stands by."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """The ``certificates`` that the settings name, the alarms that did not arrive, the roles of this process that are
    ``failing`` (:meth:`~millstream.node.logs.LogsPart.failing_roles`), and the processes that serve this folder; this
    process is ``process`` (:func:`~millstream.stores.audit.holders.process_of`). ``refused`` are the logs that this
    process would write, but another process writes. ``unreachable`` are the servers that the settings name and that
    cannot be reached, with the setting, and why; ``unwritable`` are the own folders of the node in which nothing can be
    written, and why; ``troubles`` names what could not be read.
    """

    certificates: Sequence[CertificateExpiry] = ()
    undelivered: Sequence[UndeliveredAlarm] = ()
    failing: Mapping[str, str] = {}
    process: str = ""
    refused: Sequence[WriterRefusal] = ()
    serving: Sequence[ServingNode] = ()
    unreachable: Mapping[str, str] = {}
    unwritable: Mapping[str, str] = {}
    troubles: Mapping[str, str] = {}


def look_at_process(node: Node) -> ProcessState:
    """Look once."""
    troubles = dict[str, str]()

    def failed(setting: str, error: Exception) -> None:
        text = str(error) if isinstance(error, MillstreamError) else f"unexpected {type(error).__name__}: {error}"
        troubles[f"the certificate of {setting}"] = text

    certificates = certificate_expiries(node.settings, failed)
    return ProcessState(
        certificates=certificates,
        undelivered=node.mill.undelivered_alarms,
        failing=node.logs.failing_roles(),
        process=process_of(Holders().new()),
        refused=_refused(node),
        serving=serving_nodes(node.folder),
        unreachable=_unreachable(node.settings),
        unwritable=_unwritable(node),
        troubles=troubles,
    )


def _refused(node: Node) -> Sequence[WriterRefusal]:
    """The leases that were refused to what of this process writes for long, and that others still hold."""
    store, held = node.logs.store, list[WriterRefusal]()
    refused = [one for one in store.refusals if one.producer in _LASTING_WRITERS]
    for number, one in enumerate(refused):
        try:
            writer = store.log(LogSpec(one.log), create=False).current_writer
        except LogNotFoundError:  # nobody writes to a log that was removed since
            continue
        except LogError:  # of a store that cannot be reached, which is an issue of its own
            return [*held, *refused[number:]]
        if writer is not None:
            held.append(one)
    return held


def _unwritable(node: Node) -> Mapping[str, str]:
    """The node's own folders in which nothing can be written, by part, and why; of other accounts it is not known."""
    found = dict[str, str]()
    for part, folder in own_folders(node).items():
        with contextlib.suppress(OSError):
            if os.geteuid() in (0, folder.stat().st_uid) and (why := write_refusal(folder)):
                found[part] = why
    return found


def _unreachable(settings: Settings) -> Mapping[str, str]:
    """The settings that name a server at which nothing listens, and why."""
    queue = settings.queue
    urls = {"log.store": settings.log.store, "queue.database": queue.database, "queue.broker": queue.broker}
    urls |= {"node.database": settings.node.database, "registry.database": settings.registry.database}
    urls |= {f"serve.relay.{log}.url": role.url for log, role in settings.serve.relay.items()}
    found = {setting: _refusal(url) for setting, url in urls.items()}
    return {setting: why for setting, why in found.items() if why}


def _refusal(url: str) -> str:
    """Why nothing listens at the server *url*; empty where something does, or where it is no URL of a server."""
    address = urlsplit(url)
    host, port = address.hostname, address.port or scheme_of(address).port
    if not host or not port:
        return ""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            if address.scheme in ("mysql", "mariadb"):
                _log_in(connection, address)
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""


def _log_in(connection: socket.socket, address: SplitResult) -> None:
    """Log in to MariaDB or MySQL, and out. After 100 connections that end before the login (``max_connect_errors``) the
    server refuses all of this host. A login that fails does not count, and who uses the database reports it.
    """
    options = dict(parse_qsl(address.query))
    ca = options.get("tls_ca") or options.get("ssl_ca")
    with contextlib.suppress(Exception):
        import pymysql

        file = options.get("password_file")
        session = pymysql.connect(
            host=address.hostname,
            user=unquote(address.username or ""),
            password=read_password(file) if file else unquote(address.password or ""),
            read_timeout=_SECONDS,
            write_timeout=_SECONDS,
            ssl_ca=ca,
            ssl_verify_cert=bool(ca),
            ssl_verify_identity=bool(ca),
            defer_connect=True,
        )
        session.connect(connection)
        session.close()
