"""The faults of the rot drill: what can happen to copies, done behind the back of whoever keeps them."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from millstream.stores import LocalStore
from millstream.stores.s3 import S3Limits, S3Store, parse_address
from millstream.testing.damage import (
    flip_bit,
    forge,
    garble_sidecar,
    put_back,
    replace_by_fifo,
    replace_by_folder,
    replace_by_link,
    take_version,
)
from millstream.testing.s3 import S3Server
from millstream.testing.services import Server
from millstream.testing.swift import data_files

SPACE = "s"
SOURCE, FOLDER, BUCKET = "1", "2", "3"
PLACES = {
    FOLDER: "a copy in a folder",
    BUCKET: "a copy in a bucket",
    SOURCE: "the source, a folder",
    f"{FOLDER}+{BUCKET}": "both copies",
    f"{SOURCE}+{FOLDER}": "the source and one copy",
}
MEBIBYTE = 1 << 20
PARTS = 17 * MEBIBYTE
"""An object of this size goes up in parts."""

_GARBAGE = {"millstream-sha256": "garbage", "millstream-properties-0": "{garbage"}


class DrillFault(msgspec.Struct, frozen=True):
    """One kind of damage to one item of each size, in the stores that ``place`` names."""

    name: str
    place: str
    text: str

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores in which the item is damaged."""
        return tuple(self.place.split("+"))

    def sizes(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the *chosen* sizes (bytes) of which an item can have this fault."""
        if self.name == "parts":
            return (PARTS,)
        return tuple(size for size in chosen if size or self.name in _ALSO_EMPTY)

    def content_ids(self, chosen: tuple[int, ...]) -> dict[str, int]:
        """The items that it is done to, with their sizes."""
        return {f"bad/{self.place}-{self.name}/{size}": size for size in self.sizes(chosen)}


_COPIES, _ALL, _FOLDERS = (FOLDER, BUCKET), (FOLDER, BUCKET, SOURCE), (FOLDER, SOURCE)
_PAIRS = (f"{FOLDER}+{BUCKET}", f"{SOURCE}+{FOLDER}")
_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "flipped": ("bit flipped on disk", _ALL),
    "truncated": ("truncated on disk", _COPIES),
    "deleted": ("deleted", _COPIES),
    "replaced": ("overwritten with other bytes of the same size", _COPIES),
    "recoated": ("property changed", _COPIES),
    "parts": ("bit flipped in a multipart object", (BUCKET,)),
    "outdated": ("old version put back with its sidecar or metadata", _ALL),
    "forged": ("other bytes with matching sidecar or metadata and a new time", _ALL),
    "twice": ("the same forged content in two places", _PAIRS),
    "unrecorded": ("bit flipped, manifest row deleted", _ALL),
    "unknown": ("bit flipped, all rows of the item deleted", _ALL),
    "garbled": ("sidecar or metadata overwritten with garbage", _ALL),
    "folder": ("replaced by a folder", _FOLDERS),
    "symlink": ("replaced by a symbolic link out of the store", _FOLDERS),
    "fifo": ("replaced by a pipe", _FOLDERS),
    "linked": ("folder of the file replaced by a symbolic link out of the store", _FOLDERS),
}
_ALSO_EMPTY = frozenset(
    ("deleted", "recoated", "outdated", "forged", "twice", "garbled", "folder", "symlink", "fifo", "linked")
)
FAULTS = tuple(
    DrillFault(name, place, text) for place in PLACES for name, (text, places) in _KINDS.items() if place in places
)


class DrillContent:
    """The bytes of all items, made anew from *seed* whenever they are asked for. No two items have bytes in common."""

    def __init__(self, seed: str, sizes: Mapping[str, int]) -> None:
        self._seed, self.sizes = seed, sizes
        self.sums = {name: hashlib.sha256(self.body(name)).hexdigest() for name in sizes}

    def body(self, content_id: str, version: str = "") -> bytes:
        """The bytes of an item, or of another *version* of it of the same size (of 10 bytes where that is empty)."""
        size = self.sizes[content_id] or (10 if version else 0)
        return random.Random(f"{self._seed} {content_id} {version}").randbytes(size)


class DrillDamage:
    """Does the faults to *stores*, of which the bucket is kept by *server*; links lead to files in *outside*."""

    def __init__(self, stores: Mapping[str, Any], server: Server, content: DrillContent, outside: Path) -> None:
        self._stores, self._server, self._content = stores, server, content
        self._s3 = S3Server(server.url)
        self._outside = _Outside(outside)
        self._old: dict[tuple[str, str], Callable[[], object]] = {}

    def keep_versions(self, fault: DrillFault, sizes: tuple[int, ...]) -> None:
        """Remember the present version of the items of *fault*, to put it back later."""
        for store, content_id in itertools.product(fault.stores, fault.content_ids(sizes)):
            if store == BUCKET:
                kept = self._s3.client.head_object(**self._key(content_id))["Metadata"]
                body = self._content.body(content_id, "old")
                self._old[store, content_id] = partial(self._put, content_id, body, kept)
            else:
                version = take_version(self._stores[store], SPACE, content_id)
                self._old[store, content_id] = partial(put_back, version)

    def do(
        self, fault: DrillFault, sizes: tuple[int, ...], delete_rows: Callable[[str, tuple[str, ...]], None]
    ) -> None:
        """Do *fault* to its items; *delete_rows* deletes what is recorded of an item in some stores."""
        for content_id in fault.content_ids(sizes):
            for store in fault.stores:
                if fault.name == "outdated":
                    self._old[store, content_id]()
                elif store == BUCKET:
                    self._damage_object(fault.name, content_id)
                else:
                    self._damage_file(fault, store, content_id)
            if fault.name in ("unrecorded", "unknown"):
                delete_rows(content_id, fault.stores if fault.name == "unrecorded" else (SOURCE, FOLDER, BUCKET))

    def seal(self) -> None:
        """From now on, whoever reads or writes outside the stores is found out."""
        self._outside.seal()

    def escapes(self) -> list[str]:
        """What was read, written or made outside the stores since it was sealed."""
        return self._outside.changes()

    def _damage_file(self, fault: DrillFault, name: str, content_id: str) -> None:
        store: LocalStore = self._stores[name]
        if fault.name == "linked":
            self._outside.move_folder(Path(*_space_path(store), content_id).parent)
            return
        path = store.path_of(SPACE, content_id)
        if fault.name in _FILE_DAMAGE:
            _FILE_DAMAGE[fault.name](path)
        elif fault.name == "recoated":
            store.set_properties(SPACE, content_id, {"creator": "somebody"})
        elif fault.name in ("forged", "twice"):
            forge(store, SPACE, content_id, self._content.body(content_id, "forged"))
        elif fault.name == "garbled":
            garble_sidecar(store, SPACE, content_id)
        elif fault.name == "symlink":
            replace_by_link(path, self._outside.new_file())
        else:
            flip_bit(path)

    def _damage_object(self, name: str, content_id: str) -> None:
        bucket: S3Store = self._stores[BUCKET]
        body = self._content.body(content_id)
        if name == "deleted":
            self._s3.client.delete_object(**self._key(content_id))
        elif name == "replaced":
            self._s3.client.put_object(**self._key(content_id), Body=b"!" * len(body))
        elif name == "recoated":
            bucket.set_properties(SPACE, content_id, {"creator": "somebody"})
        elif name in ("forged", "twice"):
            forged, kept = self._content.body(content_id, "forged"), self._metadata(content_id)
            own = {"millstream-sha256": hashlib.sha256(forged).hexdigest()} if "millstream-sha256" in kept else {}
            self._put(content_id, forged, kept | own)
        elif name == "garbled":
            self._put(content_id, body, self._metadata(content_id) | _GARBAGE)
        else:
            (path,) = data_files(self._server.folder, body[: S3Limits().part] if name == "parts" else body)
            if name == "truncated":
                os.truncate(path, 100)
            else:
                flip_bit(path, seed=3)

    def _metadata(self, content_id: str) -> dict[str, str]:
        return dict(self._s3.client.head_object(**self._key(content_id))["Metadata"])

    def _put(self, content_id: str, body: bytes, metadata: Mapping[str, str]) -> None:
        self._s3.client.put_object(**self._key(content_id), Body=io.BytesIO(body), Metadata=dict(metadata))

    def _key(self, content_id: str) -> Any:
        address = parse_address(self._stores[BUCKET].url)
        return {"Bucket": address.bucket, "Key": f"{address.prefix}{SPACE}/{content_id}"}


_FILE_DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, 100),
    "deleted": lambda path: path.unlink(),
    "replaced": lambda path: path.write_bytes(b"!" * path.stat().st_size),
    "folder": replace_by_folder,
    "fifo": replace_by_fifo,
}


class _Outside:
    """Files beside the stores to which planted links lead: nobody has any business there."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._sealed: dict[Path, tuple[int, ...]] = {}
        folder.mkdir(parents=True)

    def new_file(self) -> Path:
        path = self._folder / f"{next(self._numbers)}"
        path.write_bytes(b"none of your business")
        return path

    def move_folder(self, folder: Path) -> None:
        """Move *folder* here, and leave a symbolic link to it; once."""
        if not folder.is_symlink():
            target = self._folder / f"{next(self._numbers)}"
            folder.rename(target)
            folder.symlink_to(target)

    def seal(self) -> None:
        for path in (self._folder, *self._folder.rglob("*")):
            mtime = path.stat().st_mtime_ns
            os.utime(path, ns=(mtime - 86_400_000_000_000, mtime))  # so old a time of access is renewed by any access
            self._sealed[path] = _state(path)

    def changes(self) -> list[str]:
        now = {path: _state(path) for path in self._sealed if path.exists()}
        new = [str(path) for path in self._folder.rglob("*") if path not in self._sealed]
        return [str(path) for path, state in self._sealed.items() if now.get(path) != state] + new


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_atime_ns, status.st_mtime_ns


def _space_path(store: LocalStore) -> tuple[str, ...]:
    return (store.url.removeprefix("file://"), SPACE)
