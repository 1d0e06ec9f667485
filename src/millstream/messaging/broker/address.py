"""The addresses of a broker in the protocol: where it listens, and the targets of routes."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec

from millstream.core.address import Address
from millstream.messaging.protocol import v2


class RouteEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of the routes of a broker: to ``address``, and clients that encrypt to ``tls_address`` if there is
    one.

    With ``as_asked`` they lead to the endpoints that a client names as those by which it came: it may have come through
    a proxy or a tunnel. That is for a broker that is the only one of its topics, and for clients that do not follow
    routes: where several processes serve a node, each passes their calls on.
    """

    address: Address
    tls_address: Address | None = None
    as_asked: bool = True

    def choose(self, asked: v2.Endpoints, *, is_encrypted: bool, follows: bool) -> v2.Endpoints:
        """The endpoints for a client that *asked* by these, and *follows* where routes lead, or does not."""
        if (self.as_asked or not follows) and asked.addresses:
            return asked
        return to_endpoints(self.tls_address if is_encrypted and self.tls_address is not None else self.address)


def to_endpoints(place: Address) -> v2.Endpoints:
    """*place* in the protocol."""
    endpoints = v2.Endpoints(scheme=_scheme(place.host))
    endpoints.addresses.add(host=place.host, port=place.port)
    return endpoints


def _scheme(host: str) -> Any:
    try:
        return v2.IPv6 if ipaddress.ip_address(host).version == 6 else v2.IPv4
    except ValueError:
        return v2.DOMAIN_NAME
