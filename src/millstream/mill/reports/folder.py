"""Where reports are kept: a folder for each store and space, each report chained to the one before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from millstream.core.canonical import CanonicalError, parse_canonical
from millstream.core.decoding import prepared
from millstream.core.durable import file_lock, replacing, write_durably
from millstream.mill.errors import ReportError
from millstream.mill.reports.page import page
from millstream.mill.reports.report import IntegrityReport, encode_report

_NAME = re.compile(r"(\d{6})\.json")


class ReportFolder:
    """Reports in *root*: ``<store>/<space>/<number>.json``, ``.html`` for people, ``.tsv`` with one line an item.

    Names are percent-encoded. Reports are only ever added.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def save(self, report: IntegrityReport, tsv: Iterable[str] | None = None) -> Path:
        """Keep *report* as the next of its space, chained to the last one; where it lies is returned.

        *tsv* are the lines of its table, which are written as they come.
        Its ``previous`` is set here. Raises :class:`ReportError` where the chain is broken already.
        """
        folder = self.folder(report.store, report.space)
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock"):  # two at a time would take the same number, and one report would be lost
            return self._save(folder, report, tsv)

    def _save(self, folder: Path, report: IntegrityReport, tsv: Iterable[str] | None) -> Path:
        last = self._paths(report.store, report.space)[-1:]
        previous = _read(last[0]).sha256 if last else None
        path = folder / f"{len(self._paths(report.store, report.space)) + 1:06d}.json"
        if tsv is not None:
            with replacing(path.with_suffix(".tsv")) as file:
                file.writelines(line.encode() for line in tsv)
        chained = msgspec.structs.replace(report, previous=previous)
        write_durably(path.with_suffix(".html"), "".join(page(chained)).encode())
        write_durably(path, encode_report(chained))
        return path

    def reports(self, store: str, space: str) -> Iterator[IntegrityReport]:
        """Every report of a space, the first one first."""
        return map(_read, self._paths(store, space))

    def latest(self, store: str, space: str) -> IntegrityReport | None:
        """The last report of a space, if there is one."""
        paths = self._paths(store, space)
        return _read(paths[-1]) if paths else None

    def spaces(self) -> Sequence[tuple[str, str]]:
        """Every (store, space) that has a report, sorted."""
        folders = sorted({path.parent for path in self._root.glob("*/*/*.json") if _NAME.fullmatch(path.name)})
        return sorted((unquote(folder.parent.name), unquote(folder.name)) for folder in folders)

    def verify(self, store: str, space: str) -> str | None:
        """Walk the chain of a space; the SHA-256 of its last report, for pinning, or None where there is none.

        Raises :class:`ReportError` that names the first report that is missing or was changed.
        """
        previous = None
        for number, path in enumerate(self._paths(store, space), start=1):
            report = _read(path)
            if path.stem != f"{number:06d}" or report.previous != previous:
                raise ReportError(
                    f"{path} does not continue the previous report: a report was changed or removed; "
                    "restore it from a backup"
                )
            previous = report.sha256
        return previous

    def folder(self, store: str, space: str) -> Path:
        """Where the reports of a space lie, or will lie."""
        return self._root / encode_name(store) / encode_name(space)

    def _paths(self, store: str, space: str) -> Sequence[Path]:
        folder = self.folder(store, space)
        return sorted(path for path in folder.glob("*.json") if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def encode_name(name: str) -> str:
    """The name of a store or space as that of a folder: percent-encoded, a leading dot too."""
    encoded = quote(name, safe=" ")
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def _read(path: Path) -> IntegrityReport:
    try:
        return msgspec.convert(parse_canonical(path.read_bytes()), prepared(IntegrityReport))
    except (CanonicalError, msgspec.ValidationError) as error:
        raise ReportError(
            f"{path} differs from the report that was written: {error}. Restore it from a backup or a copy"
        ) from error
