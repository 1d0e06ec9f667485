"""Addresses of servers: ``host:port;host:port``, as in every RocketMQ client."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.messaging.client.errors import BadRequestError
from millstream.messaging.protocol import v2

DEFAULT_PORT = 80


class Endpoints(msgspec.Struct, frozen=True):
    """One server by its addresses, which are all of one ``scheme`` (the protocol's ``AddressScheme``)."""

    scheme: int
    addresses: tuple[tuple[str, int], ...]

    def targets(self, *, encrypted: bool) -> Sequence[str]:
        """The targets of gRPC channels to the server: one channel tries all addresses, unless it is *encrypted*.

        A channel compares the name in the server's certificate with its whole target.
        """
        prefix = "ipv4:" if self.scheme == v2.IPv4 else "ipv6:" if self.scheme == v2.IPv6 else "dns:"
        each = [_join(host, port) for host, port in self.addresses]
        return [prefix + one for one in each] if encrypted else [prefix + ",".join(each)]

    def __str__(self) -> str:
        return ";".join(_join(host, port) for host, port in self.addresses)

    def to_wire(self) -> v2.Endpoints:
        """The endpoints in the protocol."""
        kind: Any = self.scheme
        return v2.Endpoints(scheme=kind, addresses=[v2.Address(host=host, port=port) for host, port in self.addresses])


def from_wire(endpoints: v2.Endpoints) -> Endpoints:
    """Endpoints of the protocol; the order of addresses does not matter."""
    return Endpoints(endpoints.scheme, tuple(sorted((each.host, each.port) for each in endpoints.addresses)))


def parse_endpoints(text: str) -> Endpoints:
    """The endpoints in *text*: ``host[:port]``, several IP addresses with ``;`` between, ``http://`` dropped.

    Raises :class:`BadRequestError`.
    """
    found = [_split(part) for part in text.split(";") if part.strip()]
    schemes = {_scheme(host) for host, _ in found}
    if not found or len(schemes) > 1 or (v2.DOMAIN_NAME in schemes and len(found) > 1):
        raise BadRequestError(
            f"invalid server address {text[:80]!r}: write host:port, or several IP addresses of one kind (IPv4 or "
            "IPv6) with ';' between them"
        )
    return Endpoints(schemes.pop(), tuple(sorted(found)))


def _split(text: str) -> tuple[str, int]:
    text = text.strip().removeprefix("http://").removeprefix("https://").rstrip("/")
    host, mark, port = text.rpartition(":")
    if not mark or (text.count(":") > 1 and not text.startswith("[")) or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise BadRequestError(f"invalid server address {text[:80]!r}: write host:port, with a port of 1 to 65535")
    return host, int(port)


def _scheme(host: str) -> int:
    try:
        return v2.IPv6 if ipaddress.ip_address(host).version == 6 else v2.IPv4
    except ValueError:
        return v2.DOMAIN_NAME


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
