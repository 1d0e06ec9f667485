from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from millstream.anchoring import local_cas
from millstream.anchoring.cas import Cas, MemoryCas
from millstream.anchoring.errors import CasDamagedError, CasNotFoundError, CasUnavailableError
from millstream.anchoring.local_cas import LocalCas
from millstream.core.cid import cid_of, digest_from_cid
from millstream.core.durable import sync_folder
from millstream.testing.cas import CasConformance, FaultyCas


class TestMemoryCas(CasConformance):
    @pytest.fixture
    def cas(self) -> Cas:
        return MemoryCas()

    def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
        assert isinstance(cas, MemoryCas)
        cas.overwrite(cid, data)


class TestLocalCas(CasConformance):
    @pytest.fixture
    def cas(self, tmp_path: Path) -> Cas:
        return LocalCas(tmp_path / "deep" / "cas")

    def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
        assert isinstance(cas, LocalCas)
        path = cas.root / cid
        path.unlink() if data is None else path.write_bytes(data)


class TestFaultyCas(CasConformance):
    """Without a fault switched on, the wrapper is as good as what it wraps."""

    @pytest.fixture
    def memory(self) -> MemoryCas:
        return MemoryCas()

    @pytest.fixture
    def cas(self, memory: MemoryCas) -> Cas:
        self.base = memory
        return FaultyCas(memory)

    def damage(self, cas: Cas, cid: str, data: bytes | None) -> None:
        self.base.overwrite(cid, data)

    def test_it_fails_as_often_as_it_is_told(self, cas: FaultyCas) -> None:
        cas.fail_next(2)
        with pytest.raises(CasUnavailableError):
            cas.put(b"x")
        with pytest.raises(CasUnavailableError):
            cas.has(cid_of(b"x"))
        assert cas.put(b"x") == cid_of(b"x")

    def test_it_confirms_writes_that_never_happen(self, cas: FaultyCas) -> None:
        cas.lose_writes = True
        assert not cas.has(cas.put(b"x"))


def test_a_file_is_named_so_that_any_sha256_tool_can_check_it(tmp_path: Path) -> None:
    cid = LocalCas(tmp_path).put(b"some bytes")
    assert hashlib.sha256((tmp_path / cid).read_bytes()).digest() == digest_from_cid(cid)


@pytest.mark.parametrize("count", [1, 100])
def test_p2_durability_the_folder_is_synced_when_all_its_new_files_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    synced: list[set[str]] = []

    def sync(folder: Path) -> None:
        sync_folder(folder)
        synced.append({path.name for path in folder.iterdir()})

    monkeypatch.setattr(local_cas, "sync_folder", sync)
    cids = LocalCas(tmp_path).put_many([b"%d" % number for number in range(count)])
    assert synced == [set(cids)], "once, however many there are"


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    cas = LocalCas(tmp_path / "none")
    with pytest.raises(CasNotFoundError):
        cas.get(cid_of(b"x"), 10)
    assert not cas.has(cid_of(b"x"))
    assert list(cas.cids()) == []
    assert not (tmp_path / "none").exists()


def test_links_pipes_and_folders_are_never_read(tmp_path: Path) -> None:
    cas, secret = LocalCas(tmp_path / "cas"), tmp_path / "secret"
    cas.put(b"first")
    secret.write_bytes(b"linked")
    (cas.root / cid_of(b"linked")).symlink_to(secret)
    os.mkfifo(cas.root / cid_of(b"piped"))
    (cas.root / cid_of(b"folder")).mkdir()
    for content in (b"linked", b"piped"):
        assert not cas.has(cid_of(content))
        with pytest.raises(CasDamagedError):
            cas.get(cid_of(content), 100)
    with pytest.raises((CasDamagedError, CasUnavailableError)):
        cas.get(cid_of(b"folder"), 100)


def test_names_that_are_no_cids_are_not_listed(tmp_path: Path) -> None:
    cas = LocalCas(tmp_path)
    cid = cas.put(b"x")
    (tmp_path / "README").write_text("hello")
    (tmp_path / f".{cid}.tmp").write_text("half")
    assert list(cas.cids()) == [cid]


def test_a_failed_write_leaves_no_draft(tmp_path: Path) -> None:
    cas = LocalCas(tmp_path)

    def files() -> object:
        yield b"one"
        raise OSError(28, "No space left on device")

    with pytest.raises(CasUnavailableError, match="No space left"):
        cas.put_many(files())  # type: ignore[arg-type]
    assert not any(path.name.endswith(".tmp") for path in tmp_path.iterdir())


def test_drafts_that_killed_writers_left_are_removed_after_a_day(tmp_path: Path) -> None:
    cid = cid_of(b"x")
    old, new, other = (
        tmp_path / f".{name}.tmp" for name in (f"{cid}.{'a' * 12}", f"{cid}.{'b' * 12}", "x." + "a" * 12)
    )
    for path in (old, new, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (1, 1))
    cas = LocalCas(tmp_path)
    cas.put(b"y")
    assert old.exists(), "a put lists no folder"
    cas.clear_drafts()
    assert set(tmp_path.iterdir()) == {new, other, tmp_path / cid_of(b"y")}


def test_a_folder_that_cannot_be_searched_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cas = LocalCas(tmp_path / "file" / "cas")
    with pytest.raises(CasUnavailableError, match="Not a directory"):
        cas.has(cid_of(b"grain"))
    with pytest.raises(CasUnavailableError, match="cannot list"):
        cas.cids()
