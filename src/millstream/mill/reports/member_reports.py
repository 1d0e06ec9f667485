"""Reports that a member wrote to its folder: early releases did so also where the node's database is on a server.

Each member then had a chain of its own for each space, and the ledger has the reports of all chains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from millstream.core.durable import write_durably
from millstream.mill.reports.archive import StoredReport
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.table import ReportTable

_TAKEN = "taken-over.json"
"""The file with the number of the last report of each store and space that was taken over."""


def take_over(root: Path, table: ReportTable, is_anchored: Callable[[StoredReport], bool]) -> int:
    """Put the reports of the folder *root* that *is_anchored* and *table* lacks into *table*; returns their number.

    They continue as the chain of their space if it has no report yet; otherwise they are kept outside the chains. The
    folder stays as it is, and what was taken over is not read again. Raises the errors of both archives.
    """
    folder, marker = ReportFolder(root), root / _TAKEN
    taken = dict[str, dict[str, int]](msgspec.json.decode(marker.read_bytes())) if marker.exists() else {}
    count = 0
    for store, space in folder.spaces():
        done = taken.get(store, {}).get(space, 0)
        fresh = [one for one in folder.stored(store, space) if one.number > done]
        if not fresh:
            continue
        kept = {one.number: one.data for one in table.stored(store, space)}
        missing = [one for one in fresh if kept.get(one.number) != one.data and is_anchored(one)]
        continues = not kept and missing == fresh and not done
        for one in missing:
            count += 1
            if not (continues and table.insert(store, space, one, folder.lines(store, space, one.number))):
                continues = False  # another member was first
                table.add_unchained(one.data)
        taken.setdefault(store, {})[space] = fresh[-1].number
        write_durably(marker, msgspec.json.encode(taken))
    return count
