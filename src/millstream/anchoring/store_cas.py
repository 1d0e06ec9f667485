"""Content-addressed storage in a space of any storage provider: a bucket of S3, a folder, memory."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence

from millstream.anchoring.cas import checked, damaged, not_found, too_large
from millstream.anchoring.errors import CasError, CasUnavailableError
from millstream.core.cid import CidForm, CidHasher, cid_of, form_of, is_cid
from millstream.stores import ItemNotFoundError, Store, StoreError, all_entries

_CHUNK = 1 << 20


class StoreBackedCas:
    """Content-addressed storage in the space *space* of *store*, which *create* makes where it is absent. Thread-safe.

    Each file is a content item named by its CID. Bytes are sent with their SHA-256, and checked when they come back.
    """

    def __init__(self, store: Store, space: str = "cas", *, create: bool = True) -> None:
        self._store = store
        self._space = space
        if create:
            with _our_errors(space):
                store.create_space(space)

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        cid = cid_of(data, form)
        with _our_errors(cid):
            if self._bytes(cid, len(data)) != data:
                sha256 = hashlib.sha256(data).hexdigest()
                self._store.put(self._space, cid, io.BytesIO(data), sha256=sha256)
        return cid

    def put_many(self, files: Iterable[bytes], form: CidForm = CidForm.RAW) -> Sequence[str]:
        return [self.put(data, form) for data in files]

    def get(self, cid: str, limit: int) -> bytes:
        form_of(cid)
        with _our_errors(cid):
            data = self._bytes(cid, limit)
            if data is None:
                raise not_found(cid)
            if len(data) <= limit:
                return checked(cid, data, limit)
            raise too_large(cid, limit) if self._hash(cid) == cid else damaged(cid)

    def has(self, cid: str) -> bool:
        form_of(cid)
        with _our_errors(cid):
            try:
                self._store.info(self._space, cid)
            except ItemNotFoundError:
                return False
            return True

    def cids(self) -> Iterator[str]:
        with _our_errors(self._space):
            yield from sorted(e.content_id for e in all_entries(self._store, self._space) if is_cid(e.content_id))

    def _bytes(self, cid: str, limit: int) -> bytes | None:
        """The bytes of the file, up to one beyond *limit*; None where there is no such file."""
        try:
            with self._store.open(self._space, cid) as file:
                chunks, size = list[bytes](), 0
                while size <= limit and (chunk := file.read(min(_CHUNK, limit + 1 - size))):
                    chunks.append(chunk)
                    size += len(chunk)
                return b"".join(chunks)
        except ItemNotFoundError:
            return None

    def _hash(self, cid: str) -> str:
        """The CID of the whole file, however large it is."""
        hasher = CidHasher(form_of(cid))
        with self._store.open(self._space, cid) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
        return hasher.cid()


@contextlib.contextmanager
def _our_errors(what: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        kind = CasUnavailableError if error.transient else CasError
        raise kind(f"the storage provider failed with {what}: {error}") from error
