"""The kind of a log, which the store keeps: logs of users, and system logs of Millstream."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["application", "topic", "batches", "ledger", "queue", "journal"]
SystemKind = Literal["ledger", "queue", "journal"]

KINDS: tuple[Kind, ...] = get_args(Kind)
SYSTEM_KINDS: tuple[SystemKind, ...] = get_args(SystemKind)
DATA_KINDS: tuple[Kind, ...] = ("application", "topic")
"""A log of messages of users."""

UNKNOWN = "unknown"
"""In place of the kind of a log that is so damaged that its kind cannot be read."""

SYSTEM = "system:"
"""The prefix of the names of system logs, which no other name may have."""

KIND = "kind"
"""The state in which a log keeps what it is for; logs of stores of format 1 have none."""

COPYING = "copying"
"""The state of a system log that was made by a copy and whose keeper has not opened it."""


def is_system(name: str) -> bool:
    """Whether *name* is that of a system log."""
    return name.startswith(SYSTEM)
