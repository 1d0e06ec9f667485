"""The context of a call of the protocol besides its request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from millstream.messaging.broker.security.access_keys import UNRESTRICTED, CallerPermissions


class CallContext(msgspec.Struct, frozen=True):
    """The context of a call besides its request: who calls, in which namespace, how many seconds it has left, what the
    caller may do, by which connection it came, what language the caller's client says it is written in, and what gRPC
    knows of the other end."""

    client_id: str
    namespace: str
    left: Callable[[], float | None]
    access: CallerPermissions = UNRESTRICTED
    connection: str = ""
    language: str = ""
    auth_context: Callable[[], Mapping[str, Iterable[bytes]]] = dict

    @property
    def is_encrypted(self) -> bool:
        """Whether it came over TLS."""
        return is_encrypted(self.auth_context())


def is_encrypted(auth_context: Mapping[str, Iterable[bytes]]) -> bool:
    """Whether a call came over TLS, by what gRPC knows of its other end."""
    return b"ssl" in auth_context.get("transport_security_type", ())
