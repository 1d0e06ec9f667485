"""The node that serves a data folder: where it listens, and its verdict, for commands on the same machine."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.core.errors import MillstreamError
from millstream.core.processes import find_process
from millstream.status.local_token import local_token
from millstream.status.verdict.models import Verdict

_FILE = "serving.json"
_SECONDS = 20.0
_MOST_BYTES = 64 << 20
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - called, not listened on


class NodeDoesNotAnswerError(MillstreamError):
    """A node serves this folder but does not report its status."""


class ServingNode(msgspec.Struct, frozen=True):
    """The process ``pid`` serves a folder; its console listens at ``host`` and ``port``. ``started`` tells the process
    from others of the same number (clock ticks since boot). ``others`` served the folder before it began.
    """

    pid: int
    started: int
    host: str
    port: int
    others: tuple[ServingNode, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether that process has not ended, as far as this machine can tell."""
        found = find_process(self.pid)
        return found is not None and found.started == self.started


@contextlib.contextmanager
def announced(folder: Path, host: str, port: int) -> Iterator[None]:
    """Let commands on *folder* find this process, whose console listens at *host* and *port*, within the block."""
    path, own = folder / _FILE, find_process(os.getpid())
    others = tuple(msgspec.structs.replace(one, others=()) for one in serving_nodes(folder) if one.pid != os.getpid())
    node = ServingNode(os.getpid(), own.started if own else 0, _ANY.get(host, host), port, others)
    with contextlib.suppress(OSError):  # a full disk is a reason to start the console, not to end it
        write_durably(path, msgspec.json.encode(node))
    try:
        yield
    finally:
        if find_serving_node(folder) == node:
            left = [one for one in others if one.is_running]
            with contextlib.suppress(OSError):
                if left:
                    write_durably(path, msgspec.json.encode(msgspec.structs.replace(left[0], others=tuple(left[1:]))))
                else:
                    path.unlink(missing_ok=True)


def serving_nodes(folder: Path) -> Sequence[ServingNode]:
    """The processes that serve *folder* on this machine, the last that began first; more than one is a fault."""
    try:
        node = msgspec.json.decode((folder / _FILE).read_bytes(), type=prepared(ServingNode))
    except (OSError, msgspec.DecodeError):
        return []
    return [one for one in (node, *node.others) if one.is_running]


def find_serving_node(folder: Path) -> ServingNode | None:
    """The process that serves *folder* on this machine, of several the last that began; None where none does."""
    return next(iter(serving_nodes(folder)), None)


def ask_verdict(node: ServingNode, folder: Path) -> Verdict:
    """The verdict of *node*, which serves *folder*. Raises :class:`NodeDoesNotAnswerError`."""
    headers = {"Host": "localhost", "Accept": "application/json", "Authorization": f"Bearer {local_token(folder)}"}
    try:
        with contextlib.closing(http.client.HTTPConnection(node.host, node.port, timeout=_SECONDS)) as connection:
            connection.request("GET", "/api/v1/overview/verdict", headers=headers)
            response = connection.getresponse()
            data = response.read(_MOST_BYTES)
        if response.status == 200:
            return msgspec.json.decode(data, type=prepared(Verdict))
        why = f"it answered {response.status}"
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        why = str(error)
    raise NodeDoesNotAnswerError(
        f"process {node.pid} serves {folder} but does not report its status ({why}): see the log of that process"
    )
