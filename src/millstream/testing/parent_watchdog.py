"""Ends a private server whose starter has died, whatever it died of: nothing of a killed test or benchmark goes on."""

from __future__ import annotations

import contextlib
import subprocess

# It waits for a line. The end of the pipe without one means that whoever held the other end is gone.
_SCRIPT = """
read _ && exit
children=$(cat "/proc/$1/task/$1/children")
for pid in "$1" $children; do kill -9 "-$pid"; done
[ -z "$2" ] || rm -rf -- "$2"
"""


class ParentWatchdog:
    """Kills the process *pid*, its group and those of its children, when this process ends before :meth:`dismiss`.

    Then *folder* is deleted as well, if one is given. It is a shell of its own that reads from a pipe of ours: a death
    signal would be bound to the thread that started the server, and threads of tests end before their servers.
    """

    def __init__(self, pid: int, folder: str = "") -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "millstream-keeper", str(pid), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The server has ended in order: there is nothing left to do."""
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate(b"\n")
        self._shell.wait()
