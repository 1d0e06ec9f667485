"""The section ``console`` of the settings: the console and its users."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from millstream.core.secrets import Secret
from millstream.core.settings import Section

DEFAULT_ADDRESS = "127.0.0.1:8460"


class Role(enum.StrEnum):
    """A role of a user: a viewer reads, an operator also acts, an admin also changes policies."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        """Whether this role may do what *other* may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class UserSettings(Section, frozen=True):
    """A user of the console. ``password`` is the hash that `millstream config user` prints, never the password."""

    password: Secret
    role: Role = Role.VIEWER


class ConsoleSettings(Section, frozen=True):
    """The console and the HTTP interface, at ``address`` (``HOST:PORT``).

    Without ``users`` everyone on this machine has all permissions, and the console listens on loopback only. Behind a
    proxy, ``hosts`` lists the host names that browsers use, and ``secure`` means that the proxy uses TLS.
    ``session_hours`` is how long a user stays signed in.
    """

    address: str = DEFAULT_ADDRESS
    users: Mapping[str, UserSettings] = msgspec.field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    secure: bool = False
    session_hours: float = 12.0
