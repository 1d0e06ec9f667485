"""Lists of checksums that people already have: ``SHA256SUMS`` (both forms of coreutils), md5deep, ``rclone hashsum``.

Each line is ``CHECKSUM  NAME`` (a ``*`` before the name means "binary"), or ``ALGORITHM (NAME) = CHECKSUM``. A line of
coreutils that begins with a backslash has ``\\\\``, ``\\n`` and ``\\r`` escaped in its name. hashdeep's lines are
``SIZE,MD5,SHA256,NAME`` below a heading that names the columns. Names are bytes: what is not UTF-8 is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from millstream.core.errors import InputError
from millstream.mill.errors import MillError

ALGORITHMS: Mapping[int, str] = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
"""The algorithm by the number of hex digits of a checksum."""

_PLAIN = re.compile(rb"(\\?)([0-9A-Fa-f]{32,128}) [ *](.+)", re.DOTALL)
_TAGGED = re.compile(rb"(\\?)([A-Za-z0-9-]+) ?\((.+)\) ?= ?([0-9A-Fa-f]{32,128})", re.DOTALL)
_HEADING = re.compile(rb"%%%%\s*(size,.+)")
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}
_MOST_BYTES = 4 << 30


class ChecksumFileError(MillError, InputError):
    """The file is not a list of checksums."""


class ExpectedChecksum(msgspec.Struct, frozen=True):
    """A line of a list of checksums: the checksum in lower-case hex, and the number of the line (from 1)."""

    algorithm: str
    value: str
    line: int


class ChecksumList:
    """The checksums of a list, by content id."""

    def __init__(self, expected: Mapping[str, tuple[ExpectedChecksum, ...]], origin: str) -> None:
        self._expected, self.origin = expected, origin

    def get(self, content_id: str) -> tuple[ExpectedChecksum, ...]:
        """The lines of the list for *content_id*; empty if there are none."""
        return self._expected.get(content_id, ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._expected)

    def __len__(self) -> int:
        return len(self._expected)


def read_checksums(
    path: Path, *, root: Path | None = None, content_id: Callable[[bytes], str] | None = None
) -> ChecksumList:
    """The list in the file *path*. Names are relative to *root*, the source's folder; absolute ones must lie below it.

    *content_id* makes a content id of a name's bytes. Raises :class:`ChecksumFileError` that names the line.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ChecksumFileError(
                f"{path} is larger than {_MOST_BYTES:,} bytes, the limit of a checksum file: split the file, and give "
                "one part to each run"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ChecksumFileError(f"cannot read the checksum file {path}: {error.strerror}") from error
    return parse_checksums(data, str(path), root=root, content_id=content_id)


def parse_checksums(
    data: bytes, origin: str, *, root: Path | None = None, content_id: Callable[[bytes], str] | None = None
) -> ChecksumList:
    """The list in *data*; *origin* names it in errors. As :func:`read_checksums`."""
    expected: dict[str, tuple[ExpectedChecksum, ...]] = {}
    for number, algorithm, value, name in _lines(data, origin):
        named = (content_id or _decode)(_relative(name, root, origin, number))
        before = expected.get(named, ())
        for one in before:
            if one.algorithm == algorithm and one.value != value:
                raise ChecksumFileError(
                    f"{origin}: lines {one.line:,} and {number:,} have different {algorithm} checksums of {named!r}: "
                    "remove the wrong line"
                )
        if not any(one.algorithm == algorithm for one in before):
            expected[named] = (*before, ExpectedChecksum(algorithm, value, number))
    if not expected:
        raise ChecksumFileError(f"{origin} contains no checksums: write lines in the format of sha256sum")
    return ChecksumList(expected, origin)


def _lines(data: bytes, origin: str) -> Iterator[tuple[int, str, str, bytes]]:
    """Line number, algorithm, checksum and name of each line."""
    columns: list[str] | None = None
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        line = raw.removesuffix(b"\r")
        if heading := _HEADING.match(line):
            columns = heading[1].decode("ascii", "replace").lower().split(",")
        elif not line.strip() or line.startswith((b"#", b"%%%%", b"  ", b"UNSUPPORTED ")):
            continue  # rclone leaves the checksum blank where the remote has none
        elif columns is not None:
            yield from _hashdeep_line(number, line, columns, origin)
        else:
            yield _line(number, line, origin)


def _line(number: int, line: bytes, origin: str) -> tuple[int, str, str, bytes]:
    if plain := _PLAIN.fullmatch(line):
        escaped, value, name = plain.groups()
        algorithm = ALGORITHMS.get(len(value))
    elif tagged := _TAGGED.fullmatch(line):
        escaped, tag, name, value = tagged.groups()
        algorithm = tag.decode("ascii").lower().replace("-", "")
        if ALGORITHMS.get(len(value)) != algorithm:
            algorithm = None
    else:
        raise ChecksumFileError(
            f"{origin}, line {number}: expected a checksum and a name as `sha256sum` writes them, not "
            f"{_decode(line[:80])!r}"
        )
    if algorithm is None:
        known = ", ".join(f"{name} ({digits})" for digits, name in ALGORITHMS.items())
        raise ChecksumFileError(
            f"{origin}, line {number}: unknown checksum algorithm, or one whose checksums do not have {len(value)} "
            f"digits; use one of these, with this number of digits: {known}"
        )
    return number, algorithm, value.decode("ascii").lower(), _unescape(name) if escaped else name


def _hashdeep_line(number: int, line: bytes, columns: list[str], origin: str) -> Iterator[tuple[int, str, str, bytes]]:
    values = line.split(b",", len(columns) - 1)
    if len(values) != len(columns):
        raise ChecksumFileError(
            f"{origin}, line {number} has {len(values)} values, but the heading of the file has {len(columns)} columns "
            f"({', '.join(columns)}): complete or remove the line"
        )
    for column, value in zip(columns[1:-1], values[1:-1], strict=True):
        if ALGORITHMS.get(len(value)) == column:
            yield number, column, value.decode("ascii", "replace").lower(), values[-1]


def _unescape(name: bytes) -> bytes:
    return re.sub(rb"\\[\\nr]", lambda match: _ESCAPES[match.group()], name)


def _relative(name: bytes, root: Path | None, origin: str, number: int) -> bytes:
    """*name* without ``./`` before it, and relative to *root*."""
    if name.startswith(b"/"):
        base = b"" if root is None else str(root).encode("utf-8", "surrogateescape").rstrip(b"/") + b"/"
        if not base or not name.startswith(base):
            raise _outside(name, origin, number)
        name = name[len(base) :]
    while name.startswith(b"./"):
        name = name[2:].lstrip(b"/")
    if ".." in PurePosixPath(_decode(name)).parts:
        raise _outside(name, origin, number)
    return name


def _outside(name: bytes, origin: str, number: int) -> ChecksumFileError:
    text = f"{origin}, line {number}: {_decode(name)!r} is outside the source"
    return ChecksumFileError(f"{text}: write names relative to the source, without '..'")


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
