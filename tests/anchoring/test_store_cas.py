"""Content-addressed storage on storage providers passes the shipped suite: folders, memory, a real S3 server."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import CasError, CasNotFoundError, CasUnavailableError
from millstream.anchoring.store_cas import StoreBackedCas, open_store_cas
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
    store.create_space("cas")
    cas = StoreBackedCas(store)

    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("open", "info", "put", "entries"):
        monkeypatch.setattr(store, name, fail)
    for call in (lambda: cas.get(cid_of(b"x"), 9), lambda: cas.has(cid_of(b"x")), lambda: cas.put(b"x"), cas.cids):
        with pytest.raises(expected):
            list(call() or ())


def test_only_writing_makes_the_place_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    cas = open_store_cas((tmp_path / "mounted").as_uri())
    assert (cas.has(cid_of(b"x")), list(cas.cids())) == (False, [])
    with pytest.raises(CasNotFoundError):
        cas.get(cid_of(b"x"), 9)
    assert list((tmp_path / "mounted").iterdir()) == []
    deep = open_store_cas((tmp_path / "deep" / "new").as_uri())
    with pytest.raises(CasUnavailableError):
        deep.has(cid_of(b"x"))
    assert not (tmp_path / "deep").exists()
    for each in (cas, deep):
        assert each.get(each.put(b"x"), 9) == b"x"


def test_a_store_that_has_to_be_made_is_made_at_the_first_write() -> None:
    made = list[str]()

    class Absent(MemoryStore):
        def create_space(self, space: str) -> None:
            if not made:
                raise StoreError("no such bucket")
            super().create_space(space)

    cas = StoreBackedCas(Absent(), make_store=lambda: made.append("bucket"))
    assert [cas.put(b"x"), cas.put(b"y")] == [cid_of(b"x"), cid_of(b"y")]
    assert made == ["bucket"]


def test_files_of_others_in_the_space_are_passed_over() -> None:
    store = MemoryStore("shared")
    store.create_space("cas")
    cas = StoreBackedCas(store)
    store.put("cas", "README", io.BytesIO(b"not ours"))
    assert list(cas.cids()) == []
    with pytest.raises(ItemNotFoundError):
        store.info("cas", cid_of(b"x"))
