"""The tables ``serve.ingest`` of the settings."""

from __future__ import annotations

from typing import Literal

from millstream.core.amounts import Duration, Size
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section
from millstream.ingest.options import Protocol
from millstream.ingest.timestamps import Unit


class IngestRole(Section, frozen=True):
    """An MQTT broker whose messages go into a log; the options are those of `millstream ingest mqtt`."""

    url: str
    topics: tuple[str, ...]
    rejects: str = ""
    qos: Literal[0, 1, 2] = 1
    protocol: Protocol = "5"
    client_id: str = ""
    in_flight: int = 1000
    max_payload: Size = Size(1 << 20)
    expiry: Duration = Duration(7 * 86_400 * MICROSECONDS)
    retained: bool = True
    shape: str = "auto"
    source: str = "topic/:-1"
    key: str = "topic/-1"
    time: str = "$.time"
    unit: Unit = "s"
    value: str = "$"
