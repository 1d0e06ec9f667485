"""The caller of a request."""

from __future__ import annotations

import msgspec

from millstream.settings.console import Role


class Principal(msgspec.Struct, frozen=True):
    """The caller of a request, and its role."""

    name: str
    role: Role
