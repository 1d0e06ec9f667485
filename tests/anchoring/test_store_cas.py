"""Content-addressed storage on storage providers passes the shipped suite: folders, memory, a real S3 server."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import CasError, CasUnavailableError
from millstream.anchoring.store_cas import StoreBackedCas
from millstream.core.cid import cid_of
from millstream.stores import ItemNotFoundError, LocalStore, MemoryStore, Store, StoreError, StoreUnavailableError
from millstream.testing.cas import CasConformance

if TYPE_CHECKING:
    from millstream.testing.s3 import S3Server


class StoreCasConformance(CasConformance):
    @pytest.fixture
    def cas(self, store: Store) -> Cas:
        self.store = store
        return StoreBackedCas(store)

    def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
        if data is None:
            self.store.delete("cas", cid)
        else:
            self.store.put("cas", cid, io.BytesIO(data))


class TestCasInAFolder(StoreCasConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store", create=True)


class TestCasInMemory(StoreCasConformance):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore("cas")


class TestCasOnS3(StoreCasConformance):
    @pytest.fixture
    def store(self, swift: S3Server) -> Store:
        return swift.new_store()


@pytest.mark.parametrize(
    ("error", "expected"), [(StoreUnavailableError("away"), CasUnavailableError), (StoreError("no"), CasError)]
)
def test_a_provider_that_fails_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, error: StoreError, expected: type[CasError]
) -> None:
    store = MemoryStore("failing")
    cas = StoreBackedCas(store)

    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("open", "info", "put", "entries"):
        monkeypatch.setattr(store, name, fail)
    for call in (lambda: cas.get(cid_of(b"x"), 9), lambda: cas.has(cid_of(b"x")), lambda: cas.put(b"x"), cas.cids):
        with pytest.raises(expected):
            list(call() or ())


def test_files_of_others_in_the_space_are_passed_over() -> None:
    store = MemoryStore("shared")
    cas = StoreBackedCas(store)
    store.put("cas", "README", io.BytesIO(b"not ours"))
    assert list(cas.cids()) == []
    with pytest.raises(ItemNotFoundError):
        store.info("cas", cid_of(b"x"))
