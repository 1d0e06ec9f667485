"""Ledgers of others, read from a file or over HTTP: as chains of entries, or as plain lists of anchors.

A plain list (``number``, ``time``, ``anchor_string``) has no hashes. Its entries get those that they would have in a
chain, so that a reader who has some of them detects a later change, insertion or removal.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import tempfile
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from millstream.anchoring.errors import HttpError, LedgerError, LedgerFormatError, LedgerUnavailableError
from millstream.anchoring.http_reader import HttpReader, HttpResponse, UrlError, check_url, redacted_url
from millstream.anchoring.ledger import GENESIS, LedgerEntry, check_seal, entry_hash, follows
from millstream.anchoring.remote_cas import folder_of
from millstream.core.canonical import MAX_SAFE_INTEGER, CanonicalError
from millstream.core.decoding import prepared
from millstream.core.printable import MAX_SHOWN, printable

NODE_LEDGER = "/sidetree/v1/ledger"
"""The path at which a node serves the ledger of its registry, in pages."""

PAGE = 1000
MAX_PAGE_BYTES = 8 << 20
LINE_BYTES = 8192
MAX_BYTES = 4 << 30
"""How long a file of entries on a web server may be; it is kept on the disk while it is read."""

_MIXED = "the file mixes a plain list and a ledger, or was changed; get the ledger again from its operator"


class LedgerPage(msgspec.Struct, frozen=True):
    """Entries of a node's ledger. ``next`` is the value of ``after`` for the next entries (None at the end); ``total``
    is the number of the last entry.
    """

    items: list[LedgerEntry]
    next: str | None = None
    total: int = 0


class PlainAnchor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a ledger without hashes. Numbers grow from line to line, and may leave some out."""

    number: int
    time: int
    anchor_string: str


class LedgerSource(Protocol):
    """A ledger to be followed. Not thread-safe."""

    name: str
    """The name of the ledger in messages."""

    is_chain: bool | None
    """Whether its entries are sealed by hashes; None before the first was read."""

    def reading(self, after: int) -> contextlib.AbstractContextManager[Iterator[LedgerEntry] | None]:
        """The entries from number *after* on, or from an earlier one, each checked to follow the one before it.

        None where the ledger is known to be what it was at :meth:`settled`. Raises :class:`LedgerError`, also while
        entries are taken.
        """
        ...

    def remaining(self) -> int:
        """How many entries come after the one that was taken last, within :meth:`reading`."""
        ...

    def settled(self) -> None:
        """Everything that was read is recorded; it need not be read again until it changes."""
        ...


class _LineLedger(abc.ABC):
    """A ledger of lines of JSON; how they are opened is said by who inherits this."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_chain: bool | None = None
        self._lines: Iterator[bytes] = iter(())
        self._version: object = None
        self._settled: object = None

    @contextlib.contextmanager
    def reading(self, after: int) -> Iterator[Iterator[LedgerEntry] | None]:  # noqa: ARG002 - lines have no index
        with self._opened() as lines:
            if lines is None:
                yield None
                return
            self._lines = lines
            yield self._entries()

    def remaining(self) -> int:
        return sum(1 for line in self._lines if line.strip())

    def settled(self) -> None:
        self._settled = self._version

    @abc.abstractmethod
    def _opened(self) -> contextlib.AbstractContextManager[Iterator[bytes] | None]:
        """The lines, while the block is open; None where they are those that were read to their end before."""

    def _entries(self) -> Iterator[LedgerEntry]:
        parsed = _parsed(self._lines, self.name)
        first = next(parsed, None)
        if first is None:
            return
        self.is_chain = isinstance(first, LedgerEntry)
        every = itertools.chain([first], parsed)
        yield from _chained(every, self.name) if self.is_chain else _sealed(every, self.name)


class FileLedger(_LineLedger):
    """The lines of a file, as ``millstream anchor ledger --json`` prints them, or a plain list."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Iterator[bytes] | None]:
        with _translated(self.name), self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._version = (status.st_ino, status.st_size, status.st_mtime_ns)
            yield None if self._version == self._settled else _bounded(file, self.name)


class WebLedger(_LineLedger):
    """The lines of a file on a web server."""

    def __init__(self, url: str, reader: HttpReader) -> None:
        super().__init__(redacted_url(url))
        self._url, self._reader = url, reader

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Iterator[bytes] | None]:
        known = {"If-None-Match": str(self._settled)} if self._settled else {}
        with _translated(self.name), self._reader.open(self._url, known) as answer:
            if answer.status == 304 and known:
                yield None
                return
            _check_status(answer)
            self._version = answer.headers.get("etag")
            with tempfile.TemporaryFile() as file:  # entries are taken slowly, and the server would not wait
                self._download(answer, file)
                yield _bounded(file, self.name)

    def _download(self, answer: HttpResponse, file: BinaryIO) -> None:
        for chunk in answer.chunks():
            file.write(chunk)
            if file.tell() > MAX_BYTES:
                raise LedgerFormatError(
                    f"the ledger {self.name} has more than {MAX_BYTES:,} bytes, the limit for a ledger in a file: read "
                    "the ledger from its node instead (http://HOST:PORT or https://HOST/PATH)"
                )
        file.seek(0)


class NodeLedger:
    """The ledger of a node's registry, over its HTTP interface."""

    is_chain: bool | None = True

    def __init__(self, url: str, reader: HttpReader) -> None:
        bare = url.rstrip("/")
        self.name = redacted_url(bare)
        self._url = bare if bare.endswith(NODE_LEDGER) else bare + NODE_LEDGER
        self._reader = reader
        self._total = self._taken = 0

    @contextlib.contextmanager
    def reading(self, after: int) -> Iterator[Iterator[LedgerEntry] | None]:
        yield self._entries(max(0, after - 1))

    def remaining(self) -> int:
        return max(0, self._total - self._taken)

    def settled(self) -> None:
        pass  # a page that is empty costs nothing

    def _entries(self, after: int) -> Iterator[LedgerEntry]:
        self._taken = after
        for entry in _chained(self._all(after), self.name):
            self._taken = entry.number
            yield entry

    def _all(self, after: int) -> Iterator[LedgerEntry]:
        while True:
            page = self._page(after)
            self._total = page.total
            yield from page.items
            if page.next is None or not page.items:
                return
            after = page.items[-1].number

    def _page(self, after: int) -> LedgerPage:
        url, data = f"{self._url}?{urlencode({'after': after, 'limit': PAGE})}", b""
        with _translated(self.name), self._reader.open(url) as answer:
            _check_status(answer)
            for chunk in answer.chunks():
                data += chunk
                if len(data) > MAX_PAGE_BYTES:
                    raise LedgerFormatError(
                        f"{self.name} sent a page of more than {MAX_PAGE_BYTES:,} bytes, the limit: check that this is "
                        "the address of a node"
                    )
        try:
            page = msgspec.json.decode(data, type=prepared(LedgerPage))
            if not 0 <= page.total <= MAX_SAFE_INTEGER:  # no database could store it
                raise msgspec.ValidationError(f"total is {page.total}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LedgerFormatError(
                f"{self.name} did not answer with a page of a ledger ({printable(str(error), MAX_SHOWN)}): check that "
                "this is the address of a node"
            ) from error
        return page


def open_ledger(text: str, *, seconds: float | None = None) -> LedgerSource:
    """The ledger that *text* names, which is only ever read.

    ``http(s)://HOST``, or a web address that ends in :data:`NODE_LEDGER`, is a node; any other is a file of lines on a
    web server. ``file:///path`` and what is not a URL is a file. Raises an :class:`~millstream.core.errors.InputError`.
    """
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        parts = check_url(text)
        reader = HttpReader() if seconds is None else HttpReader(seconds=seconds)
        is_node = parts.path in ("", "/") or parts.path.rstrip("/").endswith(NODE_LEDGER)
        return NodeLedger(text, reader) if is_node and not parts.query else WebLedger(text, reader)
    if scheme not in ("", "file") or not text:
        raise UrlError(
            f"invalid location {text[:200]!r} of a ledger: give a file, http://HOST, https://HOST or https://HOST/PATH"
        )
    return FileLedger(folder_of(text) if scheme else Path(text))


def _bounded(file: BinaryIO, name: str) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise LedgerFormatError(
                f"{name} is not a ledger: it has a line of more than {LINE_BYTES:,} bytes; check the location of the "
                "ledger"
            )
        yield line


def _parsed(lines: Iterator[bytes], name: str) -> Iterator[LedgerEntry | PlainAnchor]:
    """The entries in *lines*; a last line that is not written to its end yet is left for the next time."""
    for number, line in enumerate(lines, start=1):
        text = (line.removeprefix(BOM_UTF8) if number == 1 else line).strip()
        if not text:
            continue
        try:
            yield _parse(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not line.endswith(b"\n") and number > 1:
                return
            reason = printable(str(error), MAX_SHOWN)
            raise LedgerFormatError(
                f"{name}:{number}: expected a ledger entry or a line of a plain list of anchors ({reason}): check the "
                "location of the ledger, or get the ledger again from its operator"
            ) from error


def _parse(line: bytes) -> LedgerEntry | PlainAnchor:
    try:
        return _plain_decoder.decode(line)
    except msgspec.ValidationError:
        return _entry_decoder.decode(line)


_plain_decoder = msgspec.json.Decoder(prepared(PlainAnchor))
_entry_decoder = msgspec.json.Decoder(prepared(LedgerEntry))


def _chained(entries: Iterable[LedgerEntry | PlainAnchor], name: str) -> Iterator[LedgerEntry]:
    """*entries* of a chain, of which the first may be any."""
    checked = map(_with_hash, entries, itertools.repeat(name))
    first = next(checked, None)
    if first is None:
        return
    before = LedgerEntry("", first.previous, first.number - 1, "", first.time) if first.number > 1 else None
    for entry in itertools.chain([first], checked):
        try:
            before = check_seal(follows(entry, before))
        except LedgerError as error:
            raise LedgerError(f"the ledger {name}: {error}; get the ledger again from its operator") from error
        yield before


def _with_hash(entry: LedgerEntry | PlainAnchor, name: str) -> LedgerEntry:
    if isinstance(entry, PlainAnchor):
        raise LedgerError(f"entry {entry.number} of {name} has no hash, but the entries before it do: {_MIXED}")
    return entry


def _sealed(entries: Iterable[LedgerEntry | PlainAnchor], name: str) -> Iterator[LedgerEntry]:
    """*entries* of a plain list, with the hashes that they would have in a chain."""
    number, previous = 0, GENESIS
    for entry in entries:
        if not isinstance(entry, PlainAnchor):
            raise LedgerError(f"entry {entry.number} of {name} has a hash, but the entries before it do not: {_MIXED}")
        if abs(entry.time) > MAX_SAFE_INTEGER:
            raise LedgerError(
                f"entry {entry.number} of {name} has the time {entry.time}, which is outside -(2^53 - 1) to 2^53 - 1; "
                "get the list again from its operator"
            )
        if not number < entry.number <= MAX_SAFE_INTEGER:
            raise LedgerError(
                f"entry {entry.number} of {name} does not follow entry {number}: numbers must increase, up to "
                "2^53 - 1; get the list again from its operator"
            )
        try:
            sealed = entry_hash(entry.anchor_string, entry.number, previous, entry.time)
        except (CanonicalError, UnicodeEncodeError) as error:
            raise LedgerFormatError(f"entry {entry.number} of {name}: {error}") from error
        yield LedgerEntry(entry.anchor_string, sealed, entry.number, previous, entry.time)
        number, previous = entry.number, sealed


def _check_status(answer: HttpResponse) -> None:
    if answer.status != 200:
        raise LedgerUnavailableError(
            f"cannot read the ledger: {redacted_url(answer.url)} answered with status {answer.status}; check the URL "
            "and the server"
        )


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except HttpError as error:
        raise LedgerUnavailableError(f"cannot read the ledger: {error}") from error
    except OSError as error:
        raise LedgerUnavailableError(
            f"cannot read the ledger {name}: {error.strerror or error}; check the path and its permissions"
        ) from error
