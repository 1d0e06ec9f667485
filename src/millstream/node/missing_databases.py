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
from millstream.settings import Settings

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
    settings = node.settings
    logs = missing_logs(settings)
    names = [DATABASE, *logs.names] if lacks_database_file(settings) else logs.names
    if DATABASE not in names:
        return logs
    traces = _traces(node.folder, names, _OF_DATABASE)
    if not traces and not logs.names and (ledgers := _filled_ledgers(node)):
        traces = f"the logs have the ledger of {' and '.join(ledgers)}"
    return MissingDatabases(names, traces)


def missing_logs(settings: Settings) -> MissingDatabases:
    """:func:`missing_databases` of the log store alone."""
    files = store_files(settings.log_url)
    if settings.log.store or files is None or files.exists():
        return MissingDatabases((), "")
    return MissingDatabases([files.name], _traces(settings.folder, [files.name], _ANCHORED))


def _traces(folder: Path, names: Sequence[str], folders: Sequence[str]) -> str:
    """Which of *folders* have files, and whether there are files that are put beside those of *names*, for people."""
    filled = [f"{name}/" for name in folders if _has_files(folder / name)]
    found = [f"files in {', '.join(filled)}"] if filled else []
    found += [f"files {name}-*" for name in names if any(folder.glob(f"{name}-*"))]
    return f"there are {' and '.join(found)}" if found else ""


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
