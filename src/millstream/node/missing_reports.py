"""Which reports were removed: entries of their ledger, compared with the reports inside and outside the chains."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.anchoring import LedgerEntry
from millstream.anchoring.cut_manifest import anchor_string
from millstream.core.cid import CidError, cid_from_digest
from millstream.mill.reports.report import IntegrityReport
from millstream.node.reports import report_anchor

_Place = tuple[str, str]  # store and space


class AbsentReports(NamedTuple):
    """The entries whose reports are in no chain: they were removed (``missing``), are of ``other`` chains, or either of
    these (``unknown``)."""

    missing: Sequence[LedgerEntry]
    unknown: Sequence[LedgerEntry]
    other: Sequence[LedgerEntry]


def absent_reports(
    entries: Mapping[str, LedgerEntry],
    chains: Mapping[_Place, Sequence[str]],
    unchained: Iterable[IntegrityReport],
) -> AbsentReports:
    """What can be concluded of the reports of *entries* (by their anchors) that are in none of *chains*.

    *chains* has the anchors of the reports of each (store, space), the first one first. A report that is not
    *unchained* either was removed. Reports outside the chains that name each other as the previous one are one part:

    - A part that alone continues the last report of the chain of its space was removed from this chain.
    - A part is of another chain if the ledger has a report of the space's chain between the report that the part
      continues and the last one of the part. A new report continues the last one of its archive, and this was not the
      part when that report was made. A part that begins a chain continues nothing, which is before all entries.
    - Of other parts it is not known, except that reports of early releases are of the chains of members.
    """
    parts = [
        part
        for part in _parts({report_anchor(one): one for one in unchained})
        if any(anchor in entries for anchor in part.anchors)
    ]
    continued = Counter((part.place, part.previous) for part in parts)
    missing, unknown, other = (list[LedgerEntry]() for _ in range(3))
    lists = dict[str, list[LedgerEntry]]()
    for part in parts:
        chain = chains.get(part.place, ())
        if part.previous == (chain[-1] if chain else None):
            found = missing if continued[part.place, part.previous] == 1 else unknown
        else:
            found = other if not part.is_of_node or _is_beside(part, chain, entries) else unknown
        lists.update(dict.fromkeys(part.anchors, found))
    chained = {anchor for chain in chains.values() for anchor in chain}
    for anchor, entry in entries.items():
        if anchor not in chained:
            lists.get(anchor, missing).append(entry)
    return AbsentReports(missing, unknown, other)


class _Part(NamedTuple):
    """Reports outside the chains, each of which but the first continues another one of them.

    ``previous`` is the anchor of the report that the first one continues, None where it begins a chain.
    """

    place: _Place
    previous: str | None
    anchors: Sequence[str]
    is_of_node: bool


def _parts(outside: Mapping[str, IntegrityReport]) -> list[_Part]:
    """The parts of the reports *outside*, which are given by their anchors."""
    following, firsts = dict[str | None, list[str]](), list[tuple[str, str | None]]()
    for anchor, report in outside.items():
        previous = _previous_anchor(report)
        following.setdefault(previous, []).append(anchor)
        if previous not in outside:
            firsts.append((anchor, previous))
    parts = list[_Part]()
    for first, previous in firsts:
        anchors = [first]
        for anchor in anchors:
            anchors += following.get(anchor, ())
        report = outside[first]
        is_of_node = any(outside[anchor].is_of_node for anchor in anchors)
        parts.append(_Part((report.store, report.space), previous, anchors, is_of_node))
    return parts


def _previous_anchor(report: IntegrityReport) -> str | None:
    """The anchor of the report that *report* continues, which follows from its SHA-256; None if it begins a chain."""
    if report.previous is None:
        return None
    try:
        return anchor_string(1, cid_from_digest(bytes.fromhex(report.previous)))
    except (ValueError, CidError):
        return report.previous  # not a SHA-256, so it names no report


def _is_beside(part: _Part, chain: Sequence[str], entries: Mapping[str, LedgerEntry]) -> bool:
    """Whether a report of *chain* was made while *part* was the end of another one, by the order of *entries*."""
    of_part = [entries[anchor].number for anchor in part.anchors if anchor in entries]
    of_chain = sorted(entries[anchor].number for anchor in chain if anchor in entries)
    if part.previous is None:
        start = 0
    elif part.previous in entries:
        start = entries[part.previous].number
    else:  # it was never anchored
        start = min(of_part)
    after = bisect_right(of_chain, start)
    return after < len(of_chain) and of_chain[after] < max(of_part)
