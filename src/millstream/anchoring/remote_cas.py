"""Content-addressed files from untrusted locations: gateways, other nodes, folders, storage providers.

A file must match its CID. So a place that is wrong, slow or silent costs time, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from millstream.anchoring.cas import CasReader, checked, not_found, too_large
from millstream.anchoring.errors import (
    CasDamagedError,
    CasError,
    CasNotFoundError,
    CasOverlongError,
    CasTooLargeError,
    CasUnavailableError,
    HttpError,
)
from millstream.anchoring.http_reader import HttpReader, HttpResponse, check_url, redacted_url
from millstream.anchoring.local_cas import LocalCas
from millstream.core.cid import CidHasher, form_of
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError
from millstream.core.printable import MAX_SHOWN, printable

NODE_FILES = "/sidetree/v1/files"
"""The path at which a node serves the files of its registry."""

MAX_BYTES = 128 << 20
"""How much of an overlong file is read to find out whether it is really the one that was asked for."""

BACKOFF_SECONDS = 60.0
"""How long a place that did not answer is asked after all others."""

_ABSENT = frozenset({404, 410})


class CasSourceError(InputError):
    """This is not a place that content-addressed files can be read from."""


class HttpCas:
    """Files at ``URL/<CID>``: a gateway to IPFS, a plain web server, or a node. Thread-safe."""

    def __init__(self, url: str, reader: HttpReader | None = None) -> None:
        parts = check_url(url)
        if parts.query:
            raise CasSourceError(
                f"{redacted_url(url)} has a query string: remove this part; the CID is appended to the URL"
            )
        self.url = url.rstrip("/") + (NODE_FILES if parts.path in ("", "/") else "")
        self._reader = reader or HttpReader()

    def get(self, cid: str, limit: int) -> bytes:
        """See :class:`~millstream.anchoring.cas.CasReader`; no more than *limit* bytes are read.

        Raises :class:`CasOverlongError` where there would be more, and :class:`CasUnavailableError`.
        """
        form_of(cid)
        chunks, size = list[bytes](), 0
        try:
            with self._reader.open(f"{self.url}/{cid}") as answer:
                self._check_status(answer, cid)
                if (answer.length or 0) > limit:
                    raise overlong(cid, limit)
                for chunk in answer.chunks():
                    size += len(chunk)
                    if size > limit:
                        raise overlong(cid, limit)
                    chunks.append(chunk)
        except HttpError as error:
            raise CasUnavailableError(error.reason) from error
        return checked(cid, b"".join(chunks), limit)

    def is_whole(self, cid: str) -> bool:
        """Whether the file *cid* is really there, however long it is, up to :data:`MAX_BYTES`; none of it is kept."""
        hasher, size = CidHasher(form_of(cid)), 0
        try:
            with self._reader.open(f"{self.url}/{cid}") as answer:
                self._check_status(answer, cid)
                for chunk in answer.chunks():
                    size += len(chunk)
                    if size > MAX_BYTES:
                        return False
                    hasher.update(chunk)
        except (HttpError, CasError):
            return False
        return hasher.cid() == cid

    @staticmethod
    def _check_status(answer: HttpResponse, cid: str) -> None:
        if answer.status in _ABSENT:
            raise not_found(cid)
        if answer.status != 200:
            raise CasUnavailableError(f"the server answered with status {answer.status}")


class CasSource(msgspec.Struct, frozen=True):
    """A place to read files from, and what it is called."""

    name: str
    files: CasReader


class CasFailure(msgspec.Struct, frozen=True):
    """A place did not give the file *cid*: it has it not, sent something else, or did not answer."""

    place: str
    cid: str
    error: CasError


class FallbackCas:
    """The first of *places* that has a file gives it. Thread-safe. *told* hears of each place that did not.

    One that does not answer, or sends something else, is asked after all others for :data:`BACKOFF_SECONDS`.
    """

    def __init__(
        self,
        places: Sequence[CasSource],
        told: Callable[[CasFailure], object] = lambda _: None,
        *,
        clock: Clock | None = None,
    ) -> None:
        if not places:
            raise CasSourceError("no location of the files is given: add a location with --cas")
        self._places, self._told, self._clock = places, told, clock or SystemClock()
        self._resting: dict[str, float] = {}

    def get(self, cid: str, limit: int) -> bytes:
        """See :class:`~millstream.anchoring.cas.CasReader`.

        Raises :class:`CasNotFoundError` where every place answers and none gives the file, :class:`CasTooLargeError`
        only for one that was compared with its name, and :class:`CasUnavailableError` otherwise; all are named.
        """
        form_of(cid)
        refusals = list[CasFailure]()
        for place in self._in_order():
            try:
                data = place.files.get(cid, limit)
            except CasTooLargeError:
                raise
            except CasError as error:
                refusals.append(self._refused(CasFailure(place.name, cid, error)))
            else:
                self._resting.pop(place.name, None)
                return data
        self._raise_if_too_large(cid, limit, refusals)
        raise _missing(cid, refusals)

    def _in_order(self) -> Sequence[CasSource]:
        now = self._clock.monotonic()
        return sorted(self._places, key=lambda place: self._resting.get(place.name, now) > now)

    def _refused(self, refusal: CasFailure) -> CasFailure:
        if not isinstance(refusal.error, CasNotFoundError):
            self._resting[refusal.place] = self._clock.monotonic() + BACKOFF_SECONDS
        self._told(refusal)
        return refusal

    def _raise_if_too_large(self, cid: str, limit: int, refusals: Sequence[CasFailure]) -> None:
        """A file that really is longer than allowed is the anchor's fault; it must not hold up a reader for ever."""
        suspects = {refusal.place for refusal in refusals if isinstance(refusal.error, CasOverlongError)}
        for place in self._places:
            if place.name in suspects and isinstance(place.files, HttpCas) and place.files.is_whole(cid):
                raise too_large(cid, limit)


def open_cas_source(text: str, *, seconds: float | None = None) -> CasSource:
    """The place that *text* names, which is only ever read.

    ``http(s)://HOST`` is a node, any other web address is put before ``/<CID>``; ``file:///folder``, ``cas:///folder``
    and what is not a URL are folders; other URLs are those of storage providers (:mod:`millstream.stores`), whose space
    ``cas`` has the files. Raises an :class:`~millstream.core.errors.InputError` for what is none of these.
    """
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        reader = HttpReader() if seconds is None else HttpReader(seconds=seconds)
        return CasSource(redacted_url(text), HttpCas(text, reader))
    if scheme in ("", "file", "cas"):
        return CasSource(text, LocalCas(folder_of(text) if scheme else Path(text)))
    from millstream.anchoring.store_cas import StoreBackedCas
    from millstream.stores import open_provider

    return CasSource(redacted_url(text), StoreBackedCas(open_provider(text)))


def overlong(cid: str, limit: int) -> CasOverlongError:
    """The error for an answer that is longer than the file may be."""
    return CasOverlongError(f"the answer for file {cid} has more than {limit:,} bytes, the limit of its format")


def folder_of(text: str) -> Path:
    """The path in the URL *text*. Raises :class:`CasSourceError` where it is not one of this machine."""
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or "\0" in unquote(parts.path):
        raise CasSourceError(f"{text[:200]!r} is not the URL of a local folder: write {parts.scheme}:///folder")
    return Path(unquote(parts.path))


def _missing(cid: str, refusals: Sequence[CasFailure]) -> CasError:
    reasons = "; ".join(f"{refusal.place}: {reason_of(refusal.error)}" for refusal in refusals)
    answered = not any(isinstance(refusal.error, CasUnavailableError) for refusal in refusals)
    kind = CasNotFoundError if answered else CasUnavailableError
    advice = ": restore the file in one of them, or add a location that has it" if answered else ""
    return kind(f"file {cid} cannot be read from any location ({reasons}){advice}")


def reason_of(error: CasError) -> str:
    """A short text about the fault of an answer."""
    if isinstance(error, CasNotFoundError):
        return "not there"
    if isinstance(error, CasOverlongError):
        return "the answer is longer than the file may be"
    if isinstance(error, CasDamagedError):
        return "the content does not match the hash of the file"
    return printable(str(error), MAX_SHOWN)
