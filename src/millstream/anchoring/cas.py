"""Content-addressed storage: files named by the hash of their bytes.

Every implementation passes :class:`millstream.testing.cas.CasConformance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from millstream.anchoring.errors import CasDamagedError, CasNotFoundError, CasTooLargeError
from millstream.core.cid import CidForm, cid_of, form_of


class CasReader(Protocol):
    """Read access to batch files in content-addressed storage, for observers. Thread-safe."""

    def get(self, cid: str, limit: int) -> bytes:
        """The bytes of *cid*, checked against it; at most *limit* of them are held in memory.

        Raises :class:`CasNotFoundError`, :class:`CasDamagedError`, and :class:`CasTooLargeError` where the file is
        whole but has more than *limit* bytes.
        """
        ...


class Cas(CasReader, Protocol):
    """Content-addressed storage of batch files. Thread-safe; putting the same bytes again changes nothing.

    What ``put`` and ``put_many`` confirm has survived a crash. Files of all forms of CIDs may be there side by side.
    Every CID argument is checked first (:class:`millstream.core.cid.CidError`).
    """

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        """Store *data* durably and return its CID. A damaged file of that name is replaced."""
        ...

    def put_many(self, files: Iterable[bytes], form: CidForm = CidForm.RAW) -> Sequence[str]:
        """Store several files with as few waits for the disk as possible; their CIDs, in order."""
        ...

    def has(self, cid: str) -> bool:
        """Whether a file of that name is there; its bytes are not read."""
        ...

    def cids(self) -> Iterator[str]:
        """The names of all files, in order."""
        ...


class MemoryCas:
    """Content-addressed storage that ends with the process, for tests."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        cid = cid_of(data, form)
        self._files[cid] = bytes(data)
        return cid

    def put_many(self, files: Iterable[bytes], form: CidForm = CidForm.RAW) -> Sequence[str]:
        return [self.put(data, form) for data in files]

    def get(self, cid: str, limit: int) -> bytes:
        form_of(cid)
        data = self._files.get(cid)
        if data is None:
            raise not_found(cid)
        return checked(cid, data, limit)

    def has(self, cid: str) -> bool:
        form_of(cid)
        return cid in self._files

    def cids(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def overwrite(self, cid: str, data: bytes | None) -> None:
        """Damage the file *cid*: other bytes in its place, or None to lose it. Only tests have a use for this."""
        if data is None:
            self._files.pop(cid, None)
        else:
            self._files[cid] = data


def checked(cid: str, data: bytes, limit: int) -> bytes:
    """*data*, after a check that it hashes to *cid* and has at most *limit* bytes."""
    if cid_of(data, form_of(cid)) != cid:
        raise damaged(cid)
    if len(data) > limit:
        raise too_large(cid, limit)
    return data


def not_found(cid: str) -> CasNotFoundError:
    """The error for a file that is not there."""
    return CasNotFoundError(f"content-addressed storage has no file {cid}: restore the file from a copy")


def damaged(cid: str) -> CasDamagedError:
    """The error for a file whose bytes are not those its name promises."""
    return CasDamagedError(f"file {cid} is damaged: its content does not match its hash; restore the file from a copy")


def too_large(cid: str, limit: int) -> CasTooLargeError:
    """The error for a whole file that is larger than its format allows."""
    return CasTooLargeError(f"file {cid} has more than {limit:,} bytes, the limit of its format")
