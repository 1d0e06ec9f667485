"""Reports that a member wrote to its folder: early releases did so also where the node's database is on a server.

Each member then had a chain of its own for each space, and the ledger has the reports of all chains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from millstream.core.cid import cid_of
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.mill.reports.archive import StoredReport, decode_report
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.table import ReportTable

_TAKEN = "taken-over.json"
"""The file with the number of the last report of each store and space that need not be read again."""


def has_new_reports(root: Path) -> bool:
    """Whether the folder *root* has reports that :func:`take_over` would read."""
    folder, taken = ReportFolder(root), _read_taken(root)
    return any(folder.last_number(*place) > taken.get(place[0], {}).get(place[1], 0) for place in folder.spaces())


def take_over(root: Path, table: ReportTable, is_anchored: Callable[[str], bool]) -> int:
    """Put those reports of the folder *root* into *table* that it lacks, if their CID *is_anchored*; how many they are.

    Those that continue the chain of their space in *table* become a part of it, the others are kept outside the chains.
    The folder stays as it is. Reports before the first one that is not anchored are not read again; an interrupted call
    is resumed by the next one. Raises the errors of both archives.
    """
    folder, taken, count = ReportFolder(root), _read_taken(root), 0
    for store, space in folder.spaces():
        done = taken.get(store, {}).get(space, 0)
        if folder.last_number(store, space) <= done:
            continue
        known, last, is_waiting = table.cids(store, space), table.last(store, space), False
        for one in folder.stored(store, space):
            if one.number <= done:
                continue
            if (cid := cid_of(one.data)) not in known:
                if not is_anchored(cid):
                    is_waiting = True  # its process may be about to anchor it
                    continue
                count += 1
                lines = folder.lines(store, space, one.number)
                if _continues(last, one) and table.insert(store, space, one, lines):
                    last = one
                else:
                    table.add_unchained(one.data)
            if not is_waiting:
                taken.setdefault(store, {})[space] = one.number
        if taken.get(store, {}).get(space, 0) != done:
            write_durably(root / _TAKEN, msgspec.json.encode(taken))
    return count


def _continues(last: StoredReport | None, one: StoredReport) -> bool:
    """Whether *one* is chained to *last*, the last report of a chain (None: it has none), and has the next number."""
    end = (0, None) if last is None else (last.number, decode_report(last).sha256)
    return (one.number - 1, decode_report(one).previous) == end


def _read_taken(root: Path) -> dict[str, dict[str, int]]:
    """By store and space; nothing if the file is absent or damaged: then all reports are read again."""
    try:
        return msgspec.json.decode((root / _TAKEN).read_bytes(), type=prepared(dict[str, dict[str, int]]))
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
