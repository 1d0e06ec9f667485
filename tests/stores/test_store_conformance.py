"""Every store that ships passes the shipped suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.cid import cid_of
from millstream.stores import (
    CAS_SPACE,
    CasStore,
    ChecksumOrigin,
    LocalStore,
    MemoryStore,
    MountedStore,
    Store,
    ThrottledStore,
)
from millstream.testing.faulty_store import FaultyStore
from millstream.testing.s3 import S3Server
from millstream.testing.stores import CommonStoreConformance, StoreConformance


class TestLocalStore(StoreConformance):
    def open_store(self, folder: Path) -> Store:
        return LocalStore(folder)


class TestMemoryStore(StoreConformance):
    reopens = False

    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestMountedStore(StoreConformance):
    def open_store(self, folder: Path) -> Store:
        mounts = {"space": LocalStore(folder / "else?where"), "x-y.z": LocalStore(folder / "100% more")}
        return MountedStore(LocalStore(folder / "base & more"), mounts)


class TestThrottledStore(StoreConformance):
    def open_store(self, folder: Path) -> Store:
        return ThrottledStore(LocalStore(folder), 1e6)


class TestWrappedStore(StoreConformance):
    def open_store(self, folder: Path) -> Store:
        return FaultyStore(LocalStore(folder))


class TestCasStore(CommonStoreConformance):
    space = CAS_SPACE

    def open_store(self, folder: Path) -> Store:
        return CasStore(folder)

    def content_id(self, data: bytes, name: str = "item") -> str:
        return cid_of(data)


class TestS3StoreOnSwift(StoreConformance):
    longest_id = 900
    origin = ChecksumOrigin.USER

    @pytest.fixture(autouse=True)
    def server(self, swift: S3Server) -> None:
        self.s3 = swift

    def open_store(self, folder: Path) -> Store:
        return self.s3.new_store()


class TestS3StoreOnMoto(StoreConformance):
    longest_id = 900
    origin = ChecksumOrigin.USER

    @property
    def odd_ids(self) -> list[str]:
        return [content_id for content_id in super().odd_ids if "\n" not in content_id]  # the mock trips over them

    @pytest.fixture(autouse=True)
    def server(self, moto: S3Server) -> None:
        self.s3 = moto

    def open_store(self, folder: Path) -> Store:
        return self.s3.new_store()
