"""Ids of messages and clients, as RocketMQ 5 makes them."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import uuid
from typing import Final

from millstream.core.clock import MICROSECONDS, Clock

_SINCE: Final = 1_609_459_200  # 2021-01-01T00:00Z
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


_numbers = itertools.count(secrets.randbits(32))
"""Shared by all producers of the process: two that began in the same second differ in nothing else.

It starts anywhere, so that a process that is begun again within a second under its old number (as in a container)
repeats no id.
"""


class MessageIds:
    """Makes message ids: 17 bytes as 34 upper-case hexadecimal digits.

    01, the machine's MAC address (6 bytes), the process's id (2), seconds since 2021 when it began (4), a counter (4).
    A broker takes a message with an id that it knows for one that is sent again, so no two messages may share one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = 0
        self._prefix = ""

    def take(self, count: int) -> list[str]:
        """*count* more ids, unlike all others; also in a process that was forked from this one."""
        if self._process != os.getpid():
            self._begin()
        prefix = self._prefix
        return [f"{prefix}{number & 0xFFFFFFFF:08X}" for number in itertools.islice(_numbers, count)]

    def _begin(self) -> None:
        self._process = os.getpid()
        seconds = (self._clock.now() // MICROSECONDS - _SINCE) & 0xFFFFFFFF
        self._prefix = f"01{uuid.getnode():012X}{self._process & 0xFFFF:04X}{seconds:08X}"


def client_id(number: int, clock: Clock) -> str:
    """The id of the *number*-th client of this process: ``host@process@number@time``."""
    return f"{socket.gethostname()}@{os.getpid()}@{number}@{_base36(clock.now())}"


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"
