"""Which reports were removed: entries of their ledger, compared with the reports inside and outside the chains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from millstream.anchoring import LedgerEntry
from millstream.mill.reports.report import IntegrityReport
from millstream.node.reports import report_anchor


def missing_reports(
    absent: Sequence[LedgerEntry],
    unchained: Iterable[IntegrityReport],
    heads: Mapping[tuple[str, str], str | None],
    begun: Mapping[tuple[str, str], int],
) -> list[LedgerEntry]:
    """The entries whose reports are neither in a chain, as all that are *absent*, nor of another chain.

    An *unchained* report was removed from its chain if it continues one of *heads* (the SHA-256 of the last report of
    each chain). If it is of a node, it was also removed if its own chain is not outside from the first report on, or
    ended before the chain of its space had *begun* (the number of the entry of its first report). A node that became a
    member of another one had a chain beside it.
    """
    outside = {report_anchor(one): _Unchained.of(one) for one in unchained}
    firsts = _first_reports({one.sha256: one.previous for one in outside.values()})
    known = [(entry.number, outside[entry.anchor_string]) for entry in absent if entry.anchor_string in outside]
    ended = {firsts[one.sha256]: number for number, one in known}
    missing, ends = list[LedgerEntry](), dict(heads)
    for entry in absent:
        if (found := outside.get(entry.anchor_string)) is None:
            missing.append(entry)
            continue
        first = firsts[found.sha256]
        if continues := ends.get(found.place) == found.previous:
            ends[found.place] = found.sha256
        is_beside = first is not None and ended[first] > begun.get(found.place, ended[first])
        if continues or (found.is_of_node and not is_beside):
            missing.append(entry)
    return missing


class _Unchained(NamedTuple):
    """What is compared of a report outside the chains; ``place`` is its store and space."""

    place: tuple[str, str]
    previous: str | None
    sha256: str
    is_of_node: bool

    @classmethod
    def of(cls, report: IntegrityReport) -> Self:
        return cls((report.store, report.space), report.previous, report.sha256, report.is_of_node)


def _first_reports(previous: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """The first report of the chain of each report, of which *previous* has the one before it (all as SHA-256).

    None where a report of that chain is not in *previous*.
    """
    firsts, following = dict[str, str | None].fromkeys(previous), dict[str | None, list[str]]()
    for report, before in previous.items():
        following.setdefault(before, []).append(report)
    for first in following.get(None, ()):
        waiting = [first]
        while waiting:
            firsts[report := waiting.pop()] = first
            waiting += following.get(report, ())
    return firsts
