"""What a call of the protocol carries besides its request."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.messaging.broker.security.access_keys import UNRESTRICTED, CallerPermissions


class CallContext(msgspec.Struct, frozen=True):
    """What a call carries besides its request: who calls, in which namespace, how many seconds it has left, what the
    caller may do, by which connection it came, and what language the caller's client says it is written in."""

    client_id: str
    namespace: str
    left: Callable[[], float | None]
    access: CallerPermissions = UNRESTRICTED
    connection: str = ""
    language: str = ""
