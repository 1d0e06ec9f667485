"""The caller of a request."""

from __future__ import annotations

import msgspec

from millstream.settings.console import Role


class Principal(msgspec.Struct, frozen=True):
    """Who asks, and what they may do."""

    name: str
    role: Role
