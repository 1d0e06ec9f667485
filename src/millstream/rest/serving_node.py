"""The node that serves a data folder: where it listens, and its verdict, for commands on the same machine."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.core.durable import write_durably
from millstream.core.errors import MillstreamError
from millstream.core.processes import find_process
from millstream.rest.access_control import local_token
from millstream.rest.verdict.models import Verdict

_FILE = "serving.json"
_SECONDS = 20.0
_MOST_BYTES = 64 << 20
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - called, not listened on


class NodeDoesNotAnswerError(MillstreamError):
    """A node serves this folder and does not say how it is."""


class ServingNode(msgspec.Struct, frozen=True):
    """The process ``pid`` serves a folder; its console listens at ``host`` and ``port``. ``started`` tells the process
    from others of the same number (clock ticks since boot)."""

    pid: int
    started: int
    host: str
    port: int

    @property
    def is_running(self) -> bool:
        """Whether that process has not ended, as far as this machine can tell."""
        found = find_process(self.pid)
        return found is not None and found.started == self.started


@contextlib.contextmanager
def announced(folder: Path, host: str, port: int) -> Iterator[None]:
    """Let commands on *folder* find this process, whose console listens at *host* and *port*, within the block."""
    path, own = folder / _FILE, find_process(os.getpid())
    node = ServingNode(os.getpid(), own.started if own else 0, _ANY.get(host, host), port)
    with contextlib.suppress(OSError):  # a full disk is a reason to start the console, not to end it
        write_durably(path, msgspec.json.encode(node))
    try:
        yield
    finally:
        if find_serving_node(folder) == node:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def find_serving_node(folder: Path) -> ServingNode | None:
    """The process that serves *folder* on this machine; None where none does."""
    try:
        node = msgspec.json.decode((folder / _FILE).read_bytes(), type=ServingNode)
    except (OSError, msgspec.DecodeError):
        return None
    return node if node.is_running else None


def ask_verdict(node: ServingNode, folder: Path) -> Verdict:
    """The verdict of *node*, which serves *folder*. Raises :class:`NodeDoesNotAnswerError`."""
    headers = {"Host": "localhost", "Accept": "application/json", "Authorization": f"Bearer {local_token(folder)}"}
    try:
        with contextlib.closing(http.client.HTTPConnection(node.host, node.port, timeout=_SECONDS)) as connection:
            connection.request("GET", "/api/v1/overview/verdict", headers=headers)
            response = connection.getresponse()
            data = response.read(_MOST_BYTES)
        if response.status == 200:
            return msgspec.json.decode(data, type=Verdict)
        why = f"it answered {response.status}"
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        why = str(error)
    raise NodeDoesNotAnswerError(
        f"process {node.pid} serves {folder} and does not say how it is ({why}): look at its log"
    )
