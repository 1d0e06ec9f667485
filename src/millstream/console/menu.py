"""The menu of the console: each page of the first level, in its group."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class MenuEntry(msgspec.Struct, frozen=True):
    """The page at *path*. ``covers`` are first parts of other paths that belong to it, such as ``files``."""

    path: str
    name: str
    covers: Sequence[str] = ()

    def is_current(self, path: str) -> bool:
        """Whether the page at *path* is this one, or one that belongs to it."""
        return (
            path == self.path or (self.path != "/" and path.startswith(self.path)) or path.split("/")[1] in self.covers
        )


MENU: Sequence[tuple[str, Sequence[MenuEntry]]] = (
    (
        "Data",
        (
            MenuEntry("/", "Overview"),
            MenuEntry("/find", "Search", covers=("messages",)),
            MenuEntry("/logs", "Topics and logs"),
            MenuEntry("/batches", "Batches"),
            MenuEntry("/anchors", "Anchors", covers=("files",)),
            MenuEntry("/ledgers", "Ledgers"),
            MenuEntry("/proof", "Proof"),
        ),
    ),
    ("Copies", (MenuEntry("/policies", "Policies"), MenuEntry("/integrity", "Integrity"))),
    (
        "Work",
        (MenuEntry("/queues", "Queues"), MenuEntry("/dead-letters", "Dead letters"), MenuEntry("/workers", "Workers")),
    ),
    (
        "Node",
        (
            MenuEntry("/identifiers", "Identifiers"),
            MenuEntry("/members", "Members"),
            MenuEntry("/audit", "Audit log"),
            MenuEntry("/system", "System"),
        ),
    ),
)
"""The groups of the menu with their entries, in the order of display."""
