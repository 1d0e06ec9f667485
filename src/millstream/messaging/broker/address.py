"""Where a broker listens, in the protocol."""

from __future__ import annotations

import ipaddress
from typing import Any

from millstream.core.address import Address
from millstream.messaging.protocol import v2


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
