"""The tables ``serve.relay`` of the settings."""

from __future__ import annotations

from typing import Literal

from millstream.core.amounts import Duration, Size
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import Section


class RelayRole(Section, frozen=True):
    """An application's outbox that is moved into a log; the options are those of `millstream log relay`."""

    url: str
    table: str = "outbox"
    id: str = "id"
    body: str = "body"
    key: str = "key"
    source: str = "source"
    event_time: str = "event_time"
    headers: str = "headers"
    mark: str = ""
    bad: Literal["stop", "dead"] = "stop"
    rows: int = 5000
    bytes: Size = Size(8 << 20)
    poll: Duration = Duration(MICROSECONDS // 2)
    standby: bool = False
