"""Content-addressed storage in a space of any storage provider: a bucket of S3, a folder, memory."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from millstream.anchoring.cas import checked, damaged, not_found, too_large
from millstream.anchoring.errors import CasError, CasUnavailableError
from millstream.core.cid import CidForm, CidHasher, cid_of, form_of, is_cid
from millstream.stores import (
    CasStore,
    ItemNotFoundError,
    SpaceNotFoundError,
    Store,
    StoreError,
    all_entries,
    open_provider,
)

_CHUNK = 1 << 20


def open_store_cas(url: str) -> StoreBackedCas:
    """Content-addressed storage at the storage provider at *url*, whose folder or bucket is made at the first write.

    Raises what :func:`~millstream.stores.open_provider` does.
    """
    return StoreBackedCas(open_provider(url), make_store=lambda: open_provider(url, create=True))


class StoreBackedCas:
    """Content-addressed storage in the space *space* of *store*. Thread-safe.

    The space is made at the first write, and by *make_store* the store, where they are absent. Reading never makes
    anything, and finds no files where there is no space. Each file is a content item named by its CID. Bytes are sent
    with their SHA-256, and checked when they come back.
    """

    def __init__(self, store: Store, space: str = "cas", *, make_store: Callable[[], object] = lambda: None) -> None:
        self._store = store
        self._space = space
        self._make_store = make_store
        self._is_made = False

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        cid = cid_of(data, form)
        with _our_errors(cid):
            self._make_space()
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
            except (ItemNotFoundError, SpaceNotFoundError):
                return False
            return True

    def cids(self) -> Iterator[str]:
        with _our_errors(self._space):
            yield from self._cids()

    def clear_drafts(self, stopped: Callable[[], bool] = bool) -> None:
        """See :meth:`CasStore.clear_drafts`; stores of other kinds do this when they are written to."""
        if isinstance(self._store, CasStore):
            self._store.clear_drafts(stopped)

    def _cids(self) -> Sequence[str]:
        try:
            return sorted(e.content_id for e in all_entries(self._store, self._space) if is_cid(e.content_id))
        except SpaceNotFoundError:
            return []

    def _make_space(self) -> None:
        if self._is_made:
            return
        try:
            self._store.create_space(self._space)
        except StoreError as error:
            if error.transient:
                raise
            self._make_store()
            self._store.create_space(self._space)
        self._is_made = True

    def _bytes(self, cid: str, limit: int) -> bytes | None:
        """The bytes of the file, up to one beyond *limit*; None where there is no such file."""
        try:
            with self._store.open(self._space, cid) as file:
                chunks, size = list[bytes](), 0
                while size <= limit and (chunk := file.read(min(_CHUNK, limit + 1 - size))):
                    chunks.append(chunk)
                    size += len(chunk)
                return b"".join(chunks)
        except (ItemNotFoundError, SpaceNotFoundError):
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
