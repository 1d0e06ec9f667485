"""The address of a server: ``HOST:PORT``."""

from __future__ import annotations

import ipaddress
import socket

import msgspec

from millstream.core.errors import InputError


class InvalidAddressError(InputError):
    """This is not a place to listen on."""


class Address(msgspec.Struct, frozen=True):
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The place that *text* (``127.0.0.1:8081``, ``[::1]:8081``) names. Raises :class:`InvalidAddressError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidAddressError(
            f"invalid address {text[:80]!r}: write HOST:PORT with a port of 0 to 65535, such as 127.0.0.1:8081"
        )
    return Address(host, int(port))


def is_loopback(place: Address) -> bool:
    """Whether only this machine can reach *place*."""
    try:
        return ipaddress.ip_address(place.host).is_loopback
    except ValueError:
        return place.host == "localhost"


def is_wildcard(place: Address) -> bool:
    """Whether *place* is every address of this machine."""
    try:
        return ipaddress.ip_address(place.host).is_unspecified
    except ValueError:
        return False


def client_network(address: str) -> str:
    """What counts as one client at *address*: the address, or for IPv6 its network (/64), all of which one client may
    have. An IPv4 address that is written as IPv6 is that address; what is no address stays as it is.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))


def is_free(place: Address) -> bool:
    """Whether no process listens at *place*."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        with socket.create_server((place.host, place.port), family=family):
            return True
    except OSError:
        return False
