"""Mosquitto for tests: an MQTT broker that keeps sessions and messages on the disk."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from millstream.testing.programs import find_program

_HELLO = bytes.fromhex("10 0d 0004 4d515454 04 02 0005 0001 70")
"""CONNECT of MQTT 3.1.1 as client ``p``, in a session that ends with the connection."""
_WELCOME = b"\x20"

_CONFIGURATION = [
    "per_listener_settings true",
    "allow_anonymous true",
    "persistence true",
    "autosave_interval 1",
    "max_queued_messages 0",
    "max_inflight_messages 0",
    *(["user root"] if os.geteuid() == 0 else []),
]


class Mosquitto:
    """A broker that bounds nothing, and saves its state every second; a *careful* one does so after every change.

    So whoever kills a careful one loses hardly more than what is under way. *lines* are added to its configuration,
    such as those of more listeners.
    """

    package = "mosquitto"

    def __init__(self, *lines: str, careful: bool = False) -> None:
        self.name = "mosquitto-careful" if careful else "mosquitto"
        self._lines = [*_CONFIGURATION, f"autosave_on_changes {str(careful).lower()}", *lines]

    def prepare(self, folder: Path) -> None:
        """Lay out *folder*: an empty place for its state."""
        find_program("mosquitto", self.package)
        (folder / "state").mkdir()

    def command(self, folder: Path, port: int) -> Sequence[str]:
        """The command line of a broker in *folder* on 127.0.0.1:*port*."""
        place = [f"persistence_location {folder / 'state'}/", f"listener {port} 127.0.0.1"]
        (folder / "mosquitto.conf").write_text("\n".join([*place, *self._lines, ""]))
        return [find_program("mosquitto", self.package), "-c", str(folder / "mosquitto.conf")]

    def answers(self, port: int) -> bool:
        """Whether the broker on *port* lets a client in."""
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(_HELLO)
            return connection.recv(1) == _WELCOME

    def url(self, port: int) -> str:
        return f"mqtt://127.0.0.1:{port}"
