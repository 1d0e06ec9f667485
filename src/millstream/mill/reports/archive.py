"""The archive of a node's reports, each chained to the previous one: files in a folder, or rows in a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from millstream.core.canonical import CanonicalError, parse_canonical
from millstream.core.decoding import prepared
from millstream.mill.errors import ReportError
from millstream.mill.reports.report import IntegrityReport


class StoredReport(msgspec.Struct, frozen=True):
    """A report as it is kept: its ``number`` in its space, from 1, and its canonical JSON. ``place`` is for errors."""

    number: int
    data: bytes
    place: str


class ReportHead(NamedTuple):
    """The last report of a space: ``version`` is a number that changes when one is added, ``read`` reads the report.

    It returns None where there is none after all, and raises :class:`ReportError` where it cannot be read.
    """

    version: int
    read: Callable[[], IntegrityReport | None]


class ReportArchive(Protocol):
    """The reports on the spaces of stores. They are only ever added."""

    def save(self, report: IntegrityReport, tsv: Iterable[str] | None = None) -> IntegrityReport:
        """Keep *report* as the next of its space, chained to the last one: its ``previous`` is set in what is returned.

        *tsv* are the lines of its table, which are written as they come. Raises :class:`ReportError` where the chain is
        broken already.
        """
        ...

    def latest(self, store: str, space: str) -> IntegrityReport | None:
        """The last report of a space, if there is one. Raises :class:`ReportError` where it cannot be read."""
        ...

    def spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has a report, sorted."""
        ...

    def heads(self, spaces: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], ReportHead]:
        """The heads of those of *spaces* (store and name) that have a report."""
        ...

    def stored(self, store: str, space: str) -> Iterator[StoredReport]:
        """Every report of a space as it is kept, the first one first."""
        ...

    def lines(self, store: str, space: str, number: int | None = None) -> Iterator[bytes] | None:
        """The table of the report *number*, by default of the last one, in pieces; None where it has none."""
        ...

    def add(self, store: str, space: str, report: StoredReport, lines: Iterable[bytes] | None) -> None:
        """Keep what :meth:`stored` of another archive gave, under its number."""
        ...

    def unchained(self) -> Iterator[StoredReport]:
        """The reports that were put outside the chains, each with the number 0, because another process of the node had
        a chain of its own (:mod:`~millstream.mill.reports.member_reports`)."""
        ...

    def add_unchained(self, data: bytes) -> None:
        """Keep the report *data* outside the chains, and record that it is outside."""
        ...


def reports_of(archive: ReportArchive, store: str, space: str) -> Iterator[IntegrityReport]:
    """Every report of a space in *archive*, the first one first. Raises :class:`ReportError`."""
    return map(decode_report, archive.stored(store, space))


def last_reports(
    archive: ReportArchive, spaces: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], IntegrityReport]:
    """The last reports of those of *spaces* (store and name) that have one. Raises :class:`ReportError`."""
    found = {key: head.read() for key, head in archive.heads(spaces).items()}
    return {key: report for key, report in found.items() if report is not None}


def verify_chain(archive: ReportArchive, store: str, space: str) -> str | None:
    """Walk the chain of a space; the SHA-256 of its last report, for pinning, or None where there is none.

    Raises :class:`ReportError` that names the first report that is missing or was changed.
    """
    previous = None
    for number, stored in enumerate(archive.stored(store, space), start=1):
        report = decode_report(stored)
        if (report.store, report.space) != (store, space):
            raise ReportError(
                f"{stored.place} is a report on {report.space} in {report.store}: it was moved there; restore the "
                "reports of both spaces from a backup"
            )
        if stored.number != number or report.previous != previous:
            raise ReportError(
                f"{stored.place} does not continue the previous report: a report was changed or removed; restore the "
                "reports of this space from a backup"
            )
        previous = report.sha256
    return previous


def copy_reports(source: ReportArchive, target: ReportArchive) -> int:
    """Put the reports of *source* that *target* lacks into it, also those outside chains; how many *source* has.

    Raises :class:`ReportError` where *target* has another report under a number.
    """
    count = 0
    for store, space in source.spaces():
        there = {one.number: one for one in target.stored(store, space)}
        for one in source.stored(store, space):
            count += 1
            if one.number not in there:
                target.add(store, space, one, source.lines(store, space, one.number))
            else:
                _require_same(one, there[one.number])
    for one in source.unchained():
        count += 1
        target.add_unchained(one.data)
    return count


def require_same_reports(source: ReportArchive, target: ReportArchive) -> None:
    """Raise the :class:`ReportError` of :func:`copy_reports` where *target* has another report under a number."""
    for store, space in sorted({*source.spaces()} & {*target.spaces()}):
        there = {one.number: one for one in target.stored(store, space)}
        for one in source.stored(store, space):
            if one.number in there:
                _require_same(one, there[one.number])


def _require_same(one: StoredReport, there: StoredReport) -> None:
    if there.data != one.data:
        raise ReportError(
            f"{one.place} and {there.place} are different reports of the same number: "
            "`millstream mill report --verify` on both nodes shows which one is in the ledger; copy into a target "
            "without reports of this space, in the folder of a node by renaming its folder `reports/`: reports of "
            "other chains that the source has are copied too"
        )


def decode_report(stored: StoredReport) -> IntegrityReport:
    """The report that is kept as *stored*. Raises :class:`ReportError` where it was changed."""
    try:
        return msgspec.convert(parse_canonical(stored.data), prepared(IntegrityReport))
    except (CanonicalError, msgspec.ValidationError) as error:
        raise ReportError(
            f"{stored.place} differs from the report that was written: {error}. Restore it from a backup or a copy"
        ) from error
