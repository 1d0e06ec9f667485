"""What is known of the process that serves a node: its certificates, its alarms, its brokers, and others like it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from millstream.core.errors import MillstreamError
from millstream.mill.workers.monitor import UndeliveredAlarm
from millstream.node import Node
from millstream.rest.serving_node import ServingNode, serving_nodes
from millstream.rest.verdict.certificates import CertificateExpiry, certificate_expiries
from millstream.settings import Settings

_SECONDS = 3.0
_PORTS = {"mysql": 3306, "postgresql": 5432, "amqp": 5672, "amqps": 5671, "rocketmq": 8081}


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """The ``certificates`` that the settings name, the alarms that did not arrive, the logs whose MQTT broker is not
    connected, and the processes that serve this folder. ``unreachable`` are the servers that the settings name and that
    cannot be reached, with the setting, and why; ``troubles`` names what could not be read.
    """

    certificates: Sequence[CertificateExpiry] = ()
    undelivered: Sequence[UndeliveredAlarm] = ()
    disconnected: Sequence[str] = ()
    serving: Sequence[ServingNode] = ()
    unreachable: Mapping[str, str] = {}
    troubles: Mapping[str, str] = {}


def look_at_process(node: Node) -> ProcessState:
    """Look once."""
    troubles = dict[str, str]()

    def failed(setting: str, error: Exception) -> None:
        text = str(error) if isinstance(error, MillstreamError) else f"unexpected {type(error).__name__}: {error}"
        troubles[f"the certificate of {setting}"] = text

    certificates = certificate_expiries(node.settings, failed)
    gauges = node.metrics.figures().gauges
    return ProcessState(
        certificates=certificates,
        undelivered=node.mill.undelivered_alarms,
        disconnected=sorted(
            dict(labels)["log"] for (name, labels), value in gauges.items() if name == "ingest_connected" and not value
        ),
        serving=serving_nodes(node.folder),
        unreachable=_unreachable(node.settings),
        troubles=troubles,
    )


def _unreachable(settings: Settings) -> Mapping[str, str]:
    """The settings that name a server at which nothing listens, and why."""
    queue = settings.queue
    urls = {"log.store": settings.log.store, "queue.database": queue.database, "queue.broker": queue.broker}
    found = {setting: _refusal(url) for setting, url in urls.items()}
    return {setting: why for setting, why in found.items() if why}


def _refusal(url: str) -> str:
    """Why nothing listens at the server *url*; empty where something does, or where it is no URL of a server."""
    address = urlsplit(url)
    host, port = address.hostname, address.port or _PORTS.get(address.scheme)
    if address.scheme not in _PORTS or not host or not port:
        return ""
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""
