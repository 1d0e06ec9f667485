"""Reports that a member wrote to its folder: early releases did so also where the node's database is on a server.

Each member then had a chain of its own for each space, and the ledger has the reports of all chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from millstream.core.cid import cid_of
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.mill.reports.archive import StoredReport, decode_report
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.table import ReportTable

_TAKEN = "taken-over.json"
"""The file with number and CID of the last report of each store and space that need not be read again."""

_Taken = dict[tuple[str, str], tuple[int, str]]

_NOTHING = (0, "")


def new_reports(root: Path, table: ReportTable) -> Iterator[StoredReport]:
    """The reports of the folder *root* that :func:`take_over` would read. Raises the errors of both archives."""
    folder, taken = ReportFolder(root), _taken(root, table)
    for place in folder.spaces():
        yield from _after(folder, place, taken.get(place, _NOTHING)[0])


def take_over(root: Path, table: ReportTable, is_anchored: Callable[[str], bool]) -> int:
    """Put those reports of the folder *root* into *table* that it lacks, if their CID *is_anchored*; how many they are.

    Those that continue the chain of their space in *table* become a part of it, also if they were outside before; the
    others are kept outside the chains. The folder stays as it is. Reports before the first one that is not anchored are
    not read again while *table* has the last of them; an interrupted call is resumed by the next one. Raises the errors
    of both archives.
    """
    folder, taken, count = ReportFolder(root), _taken(root, table), 0
    for place in folder.spaces():
        done = taken.get(place, _NOTHING)
        if folder.last_number(*place) <= done[0]:
            continue
        last = table.last(*place)
        known = table.cids(*place)  # after `last`, so that it has all reports up to it while another process adds some
        is_waiting = False
        for one in _after(folder, place, done[0]):
            cid = cid_of(one.data)
            if cid not in known and not is_anchored(cid):
                is_waiting = True  # its process may be about to anchor it
                continue
            if _continues(last, one) and table.insert(*place, one, folder.lines(*place, one.number)):
                last = one
            elif cid not in known:
                table.add_unchained(one.data)
            count += cid not in known
            if not is_waiting:
                taken[place] = (one.number, cid)
        if taken.get(place, _NOTHING) != done:
            write_durably(root / _TAKEN, _encode_taken(taken))
    return count


def _after(folder: ReportFolder, place: tuple[str, str], number: int) -> Iterator[StoredReport]:
    """The reports of a space in *folder* after the one with *number*."""
    if folder.last_number(*place) > number:
        yield from (one for one in folder.stored(*place) if one.number > number)


def _continues(last: StoredReport | None, one: StoredReport) -> bool:
    """Whether *one* is chained to *last*, the last report of a chain (None: it has none), and has the next number."""
    end = (0, None) if last is None else (last.number, decode_report(last).sha256)
    return (one.number - 1, decode_report(one).previous) == end


def _taken(root: Path, table: ReportTable) -> _Taken:
    """What the file of *root* says, where *table* has that report: it may have been restored from an older backup.

    Nothing if the file is absent or damaged: then all reports are read again.
    """
    try:
        read = msgspec.json.decode((root / _TAKEN).read_bytes(), type=prepared(dict[str, dict[str, tuple[int, str]]]))
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    taken = {(store, space): last for store, spaces in read.items() for space, last in spaces.items()}
    known = table.known({(*place, number): cid for place, (number, cid) in taken.items()})
    return {place: last for place, last in taken.items() if last[1] in known}


def _encode_taken(taken: _Taken) -> bytes:
    by_store = dict[str, dict[str, tuple[int, str]]]()
    for (store, space), last in taken.items():
        by_store.setdefault(store, {})[space] = last
    return msgspec.json.encode(by_store)
