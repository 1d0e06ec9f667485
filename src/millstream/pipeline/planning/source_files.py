"""Files to be taken into a log: which there are, what they are called, and how the reading is shared out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.core.printable import printable
from millstream.pipeline.errors import PipelineInputError, UnusableFileError
from millstream.stores import hash_stream

Format = Literal["jsonl", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_PARQUET = b"PAR1"
"""The begin of each Parquet file."""

_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
PACKED = ".gz"

SPLIT_BYTES = 32 << 20
"""Bytes of JSON lines, or of row groups of Parquet, that a task reads. CSV is not cut: values may hold newlines."""


class SourceFile(msgspec.Struct, frozen=True):
    """A file: its *path*, its *topic* (its name below the folder that was named, without the ending), format and state.

    ``size`` is in bytes, ``modified`` in nanoseconds since the epoch; ``sha256`` is empty until it was read. Of a file
    that is ``unusable`` (why) whatever is in it, the path and the topic are only to be shown.
    """

    path: str
    topic: str
    format: Format
    size: int
    modified: int
    sha256: str = ""
    unusable: str = ""


class Split(msgspec.Struct, frozen=True):
    """The input of one task: the bytes of *file*, or for Parquet the row groups, from *start* up to *end*."""

    number: int
    file: SourceFile
    start: int
    end: int


def find_files(paths: Sequence[Path], wanted: Format | None = None) -> list[SourceFile]:
    """The files that *paths* name, folders with all that is below them, sorted by topic.

    The format is *wanted*, or goes by the ending (``.gz`` aside); in folders, other endings and hidden files are passed
    over. Files whose paths are not UTF-8 are unusable. Raises :class:`PipelineInputError` for what is not there, has an
    unknown ending, or where nothing is left.
    """
    found = [file for path in paths for file in _find(path, wanted)]
    if not found:
        raise PipelineInputError(
            f"no {' or '.join(_ENDINGS)} file found in {', '.join(map(str, paths)) or 'the empty list of paths'}: give "
            "other paths"
        )
    return sorted(found, key=lambda file: (file.topic, file.path))


Cuts: TypeAlias = Sequence[tuple[int, int]]
"""The boundaries of the splits of a file: bytes, or row groups of Parquet, from and up to."""


def splits_of(files: Iterable[tuple[SourceFile, Cuts]]) -> Iterator[Split]:
    """*files*, each with its cuts, as pieces of work, in order."""
    number = 0
    for file, cuts in files:
        for start, end in cuts:
            yield Split(number, file, start, end)
            number += 1


def cuts_of(file: SourceFile) -> Cuts:
    """Return where *file* is split, by its content. Raises :class:`UnusableFileError` if it is not a Parquet file."""
    if file.format == "parquet":
        return _row_groups(file)
    if file.format == "csv" or file.path.endswith(PACKED):
        return [(0, file.size)]
    starts = range(0, max(file.size, 1), SPLIT_BYTES)
    return [(start, min(start + SPLIT_BYTES, file.size)) for start in starts]


class FileContent(msgspec.Struct, frozen=True):
    """The result of a task for the file *path*: its SHA-256 and cuts, or the reason why it is unusable."""

    path: str
    sha256: str = ""
    cuts: tuple[tuple[int, int], ...] = ()
    unusable: str = ""


def file_content(file: SourceFile) -> FileContent:
    """Read *file* once."""
    if file.unusable:
        return FileContent(file.path, unusable=file.unusable)
    try:
        return FileContent(file.path, _hash(Path(file.path)), tuple(cuts_of(file)))
    except UnusableFileError as error:
        return FileContent(file.path, unusable=str(error))
    except OSError as error:
        return FileContent(file.path, unusable=f"cannot read {file.path}: {error.strerror or error}")


def _find(path: Path, wanted: Format | None) -> Iterator[SourceFile]:
    if not path.exists():
        raise PipelineInputError(f"no such file or folder: {path}")
    if path.is_file():
        if wanted is None and _format_of(path) is None:
            raise PipelineInputError(
                f"unknown file type of {path}: use a name that ends in {', '.join(_ENDINGS)}, or give the type with "
                "--format"
            )
        yield _describe(path, path.name, wanted)
        return
    for below in sorted(path.rglob("*")):
        name = below.relative_to(path)
        hidden = any(part[0] in "._" for part in name.parts)
        if below.is_file() and not hidden and _format_of(below) is not None:
            yield _describe(below, name.as_posix(), wanted)


def _describe(path: Path, name: str, wanted: Format | None) -> SourceFile:
    status = path.stat()
    topic = name.removesuffix(PACKED)
    stem, dot, ending = topic.rpartition(".")
    topic = stem if f"{dot}{ending}" in _ENDINGS and stem else topic
    found = SourceFile(
        str(path.absolute()), topic, wanted or _format_of(path) or "jsonl", status.st_size, status.st_mtime_ns
    )
    try:
        found.path.encode()
    except UnicodeEncodeError:  # it can be in no message, and be sent to no task
        shown = printable(found.path)
        why = f"the path {shown} is not UTF-8: rename the file or its folder"
        return msgspec.structs.replace(found, path=shown, topic=printable(topic), unusable=why)
    return found


def _format_of(path: Path) -> Format | None:
    return _ENDINGS.get(Path(path.name.removesuffix(PACKED)).suffix)


def _unreadable_parquet(path: str, why: Exception) -> UnusableFileError:
    """The error for the file *path*, which cannot be read as Parquet because of *why*."""
    try:
        with Path(path).open("rb") as data:
            begin = data.read(len(_PARQUET))
    except OSError as error:
        return UnusableFileError(f"cannot read {path}: {error.strerror}")
    if begin != _PARQUET:
        return UnusableFileError(f"{path} is not a Parquet file: {why}")
    return UnusableFileError(
        f"the Parquet file {path} cannot be read; it may be truncated or damaged: write it again, or copy it again "
        f"from its source ({why})"
    )


def _row_groups(file: SourceFile) -> Cuts:
    try:
        found = pq.read_metadata(file.path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable_parquet(file.path, error) from error
    cuts, start, size = [], 0, 0
    for group in range(found.num_row_groups):
        size += found.row_group(group).total_byte_size
        if size >= SPLIT_BYTES or group == found.num_row_groups - 1:
            cuts.append((start, group + 1))
            start, size = group + 1, 0
    return cuts


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hash_stream(file).sha256
