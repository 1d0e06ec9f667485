"""The archive of reports in a folder for each store and space, each report chained to the previous one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from millstream.core.cid import cid_of
from millstream.core.durable import file_lock, replacing, write_durably
from millstream.mill.reports.archive import ReportHead, StoredReport, decode_report
from millstream.mill.reports.page import page
from millstream.mill.reports.report import IntegrityReport, encode_report

_NAME = re.compile(r"([0-9]{6}|[1-9][0-9]{6,})\.json")
"""The file of a report: its number with six digits or more."""
_UNCHAINED = ".unchained"
"""The folder of reports outside the chains, each named by its CID. No folder of a store begins with a dot."""
_PIECE = 1 << 20


class ReportFolder:
    """A :class:`~millstream.mill.reports.archive.ReportArchive` in *root*: ``<store>/<space>/<number>.json``, ``.html``
    for people, ``.tsv`` with one line an item. Names are percent-encoded.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def save(self, report: IntegrityReport, tsv: Iterable[str] | None = None) -> IntegrityReport:
        folder = self.folder(report.store, report.space)
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock"):  # two at a time would take the same number, and one report would be lost
            return self._save(report, tsv)

    def _save(self, report: IntegrityReport, tsv: Iterable[str] | None) -> IntegrityReport:
        paths = self._paths(report.store, report.space)
        previous = decode_report(_stored(paths[-1])).sha256 if paths else None
        number = _number(paths[-1]) + 1 if paths else 1  # not their count: after a loss it is the number of the last
        path = self._path(report.store, report.space, number)
        chained = msgspec.structs.replace(report, previous=previous)
        lines = None if tsv is None else (line.encode() for line in tsv)
        _write(path, StoredReport(number, encode_report(chained), str(path)), lines)
        return chained

    def latest(self, store: str, space: str) -> IntegrityReport | None:
        paths = self._paths(store, space)
        return decode_report(_stored(paths[-1])) if paths else None

    def spaces(self) -> Sequence[tuple[str, str]]:
        folders = sorted({path.parent for path in self._root.glob("*/*/*.json") if _NAME.fullmatch(path.name)})
        return sorted((unquote(folder.parent.name), unquote(folder.name)) for folder in folders)

    def heads(self, spaces: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], ReportHead]:
        found = {}
        for store, space in spaces:
            with contextlib.suppress(FileNotFoundError):
                version = self.folder(store, space).stat().st_mtime_ns
                found[store, space] = ReportHead(version, partial(self.latest, store, space))
        return found

    def stored(self, store: str, space: str) -> Iterator[StoredReport]:
        return map(_stored, self._paths(store, space))

    def lines(self, store: str, space: str, number: int | None = None) -> Iterator[bytes] | None:
        paths = self._paths(store, space)[-1:] if number is None else [self._path(store, space, number)]
        tables = [path.with_suffix(".tsv") for path in paths]
        return _pieces(tables[0]) if tables and tables[0].exists() else None

    def add(self, store: str, space: str, report: StoredReport, lines: Iterable[bytes] | None) -> None:
        path = self._path(store, space, report.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, report, lines)

    def unchained(self) -> Iterator[StoredReport]:
        paths = sorted((self._root / _UNCHAINED).glob("*.json"))
        return (StoredReport(0, path.read_bytes(), str(path)) for path in paths)

    def add_unchained(self, data: bytes) -> None:
        path = self._root / _UNCHAINED / f"{cid_of(data)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)

    def last_number(self, store: str, space: str) -> int:
        """The number of the last report of a space; 0 where there is none."""
        return max(map(_number, self._paths(store, space)), default=0)

    def folder(self, store: str, space: str) -> Path:
        """The folder of the reports of a space, which may not exist yet."""
        return self._root / encode_name(store) / encode_name(space)

    def _path(self, store: str, space: str, number: int) -> Path:
        return self.folder(store, space) / f"{number:06d}.json"

    def _paths(self, store: str, space: str) -> Sequence[Path]:
        folder = self.folder(store, space)
        found = (path for path in folder.glob("*.json") if _NAME.fullmatch(path.name)) if folder.is_dir() else ()
        return sorted(found, key=_number)  # a name of seven digits sorts before one of six


def encode_name(name: str) -> str:
    """The name of a store or space as that of a folder: percent-encoded, a leading dot too."""
    encoded = quote(name, safe=" ")
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def _number(path: Path) -> int:
    return int(path.stem)


def _stored(path: Path) -> StoredReport:
    return StoredReport(_number(path), path.read_bytes(), str(path))


def _write(path: Path, report: StoredReport, lines: Iterable[bytes] | None) -> None:
    """Write *report* last: what is beside it belongs to a report that is there."""
    if lines is not None:
        with replacing(path.with_suffix(".tsv")) as file:
            file.writelines(lines)
    write_durably(path.with_suffix(".html"), "".join(page(decode_report(report))).encode())
    write_durably(path, report.data)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
