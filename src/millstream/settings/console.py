"""The section ``console`` of the settings: the console and its users."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from millstream.core.secrets import Secret
from millstream.core.settings import Section

DEFAULT_ADDRESS = "127.0.0.1:8460"


class Role(enum.StrEnum):
    """What somebody may do: look, act on what is running, or also change policies. Each may what those before may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        """Whether this role may do what *other* may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class UserSettings(Section, frozen=True):
    """One person. ``password`` is a hash, as `millstream config user` prints it, never the password."""

    password: Secret
    role: Role = Role.VIEWER


class ConsoleSettings(Section, frozen=True):
    """The console and the interface for programs, at ``address`` (``HOST:PORT``).

    Without ``users`` everybody on this machine may do everything, and no other address than one of this machine is
    listened on. ``hosts`` are the names by which browsers reach it, where a proxy stands before it; ``secure`` says
    that this proxy speaks TLS. ``session_hours`` is how long somebody stays signed in.
    """

    address: str = DEFAULT_ADDRESS
    users: Mapping[str, UserSettings] = msgspec.field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    secure: bool = False
    session_hours: float = 12.0
