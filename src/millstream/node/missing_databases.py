"""Whether databases in a node's folder are lost, or were never made: what else is there only after they were made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millstream.anchoring.log_ledger import LEDGER_LOG
from millstream.batching.default_limits import BATCHING_FOLDER
from millstream.log import LogNotFoundError, system_log
from millstream.log.backend_schemes import store_files
from millstream.node.context import DATABASE
from millstream.node.databases import lacks_database_file
from millstream.node.reports import FOLDER, REPORT_LEDGER

if TYPE_CHECKING:
    from millstream.node.composition import Node

_ANCHORED = ("cas", "ledger-tiles", FOLDER)
"""Folders of what is entered in ledgers: their files need both databases."""

_OF_DATABASE = (BATCHING_FOLDER, "producers", *_ANCHORED)
"""Folders that are filled only once there is a database: its first start makes the file of default limits in the first.

Not ``stores``, ``policies`` and ``keys``: content, a policy or a key may be put there before the first start.
"""

_LEDGERS = {"anchors": LEDGER_LOG, "reports": REPORT_LEDGER}


class MissingDatabases(NamedTuple):
    """The ``names`` of databases that are not in the folder, and the ``traces`` of them there, for people; empty where
    there are none: they may never have been made."""

    names: Sequence[str]
    traces: str


def missing_databases(node: Node) -> MissingDatabases:
    """Which of the node's own database and the log store of its folder are missing; not those that the settings name.

    Raises the errors of the log store.
    """
    settings, files = node.settings, store_files(node.settings.log_url)
    lacks_logs = not settings.log.store and files is not None and not files.exists()
    names, folders = list[str](), dict[str, None]()
    if lacks_database_file(settings):
        names.append(DATABASE)
        folders |= dict.fromkeys(_OF_DATABASE)
    if files is not None and lacks_logs:
        names.append(files.name)
        folders |= dict.fromkeys(_ANCHORED)
    filled = [f"{name}/" for name in folders if _has_files(node.folder / name)]
    found = [f"files in {', '.join(filled)}"] if filled else []
    found += [f"files {name}-*" for name in names if any(node.folder.glob(f"{name}-*"))]
    traces = f"there are {' and '.join(found)}" if found else ""
    if not found and DATABASE in names and not lacks_logs and (ledgers := _filled_ledgers(node)):
        traces = f"the logs have the ledger of {' and '.join(ledgers)}"
    return MissingDatabases(names, traces)


def _has_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


def _filled_ledgers(node: Node) -> list[str]:
    """The names of the ledgers that have entries, which are made only by a process with the node's own database."""
    found = list[str]()
    for name, log in _LEDGERS.items():
        with contextlib.suppress(LogNotFoundError):
            if node.logs.store.log(system_log(log, "ledger"), create=False).info().count:
                found.append(name)
    return found
