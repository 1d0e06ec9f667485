"""Which log store the logs are in whose states a node keeps by their names.

States of the logs of the node's own store have no note. Those of a store that ``--store`` named have one beside the
states of batch services, ``batching/LOG.store``.
"""

from __future__ import annotations

import contextlib

from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream.core.secrets import safe_url
from millstream.log import LogNotFoundError
from millstream.log.backend_schemes import store_files
from millstream.node import Node
from millstream.node.logs import open_to_read
from millstream.settings import Settings


class OtherStoreError(InputError):
    """The node keeps states of a log of the same name in another log store."""


def claim_logs(node: Node, own: Settings, *logs: str) -> None:
    """Note that the states of *logs* are about the log store of *node*, before a command that keeps such states.

    *own* are the settings without ``--store``. Raises :class:`OtherStoreError` where states under these names are about
    another store: positions in that store would be taken for positions in this one.
    """
    used, its_own = _identity(node.settings), _identity(own)
    for log in dict.fromkeys(logs):
        document = node.databases.documents.document(f"{BATCHING_FOLDER}/{log}.store")
        noted = document.read()
        if noted is None and used != its_own:
            if _has_log(own, log):
                raise OtherStoreError(f"{_conflict(node, log, its_own, used)}: {_REMEDY}")
            node.databases.prepare()  # a new node has its limits of batches before anything else is in that folder
            document.create(used.encode())
        elif noted is not None and noted.decode() != used:
            raise OtherStoreError(
                f"{_conflict(node, log, noted.decode(), used)}: {_REMEDY}; if the second store has replaced the first, "
                f"delete {document}"
            )


_REMEDY = "choose another folder with --data, or another name for the log"


def _conflict(node: Node, log: str, kept: str, used: str) -> str:
    return f"the node in {node.folder} keeps states of the log {log!r} of the log store {kept}, not of {used}"


def _identity(settings: Settings) -> str:
    """The log store of *settings*: its path, which is relative within the data folder, or its URL without password."""
    files = store_files(settings.log_url)
    if files is None:
        return safe_url(settings.log_url)
    path, folder = files.resolve(), settings.folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _has_log(settings: Settings, log: str) -> bool:
    with contextlib.suppress(LogNotFoundError), open_to_read(settings, SystemClock()) as store:
        return store.has(log)
    return False
