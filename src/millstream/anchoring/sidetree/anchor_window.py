"""The time window in which an operation may be anchored: ``anchorFrom`` and ``anchorUntil`` of its signed data (Orb).

Both are seconds since the epoch; an operation holds from the first up to, but not at, the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.profile import Profile

MICROSECONDS = 1_000_000
_FROM, _UNTIL = "anchorFrom", "anchorUntil"


class AnchorWindow(msgspec.Struct, frozen=True):
    """The times between which an operation may be anchored, in seconds; None where there is no bound."""

    since: int | None
    until: int | None

    def fault(self, time: int) -> str | None:
        """The reason why the operation may not be anchored at *time* (microseconds); None if it may."""
        if self.since is not None and time < self.since * MICROSECONDS:
            return f"the operation holds from {_FROM} {self.since} on; send it again then"
        if self.until is not None and time >= self.until * MICROSECONDS:
            return f"the operation has expired: it held until {_UNTIL} {self.until}; sign it again"
        return None


def anchor_window(payload: Mapping[str, Any], profile: Profile) -> AnchorWindow:
    """The window in the signed *payload*. Raises :class:`RequestError` for one that no operation may have."""
    if _FROM not in profile.extra_signed:
        return AnchorWindow(None, None)
    since, until = (_seconds(payload.get(name, 0), name) for name in (_FROM, _UNTIL))
    if until and not since <= until <= since + profile.max_window_seconds:
        raise RequestError(
            "anchor_window",
            f"{_UNTIL} is {until}, but must be 0 to {profile.max_window_seconds:,} seconds after {_FROM}, {since}",
        )
    return AnchorWindow(since or None, until or (since + profile.max_window_seconds if since else None))


def _seconds(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise RequestError("anchor_window", f"{name} must be a whole number of seconds since the epoch, 0 to 2^53 - 1")
    return value
