"""Damage to stored files, for drills and demonstrations."""

from __future__ import annotations

import hashlib
import io
import os
import random
from pathlib import Path
from urllib.parse import unquote

import msgspec

from millstream.core.errors import InputError
from millstream.stores import LocalStore


def flip_bit(path: Path, seed: int = 0) -> tuple[int, int]:
    """Flip one bit of the file, chosen by *seed*, as a failing disk would: size and times stay as they were.

    Returns the byte's offset and the bit (0 to 7). Raises :class:`InputError` where the file is empty.
    """
    status = path.stat()
    if not status.st_size:
        raise InputError(f"{path} is empty and has no bit to flip: choose another file")
    draw = random.Random(seed)
    offset, bit = draw.randrange(status.st_size), draw.randrange(8)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return offset, bit


def remove(path: Path) -> None:
    """Delete the file, as a careless hand would."""
    path.unlink()


def replace_by_folder(path: Path) -> None:
    """Put a folder with a file in it in the place of the file."""
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"a file in a folder where a file was")


def replace_by_link(path: Path, target: Path) -> None:
    """Put a symbolic link to *target* in the place of the file."""
    path.unlink()
    path.symlink_to(target)


def replace_by_fifo(path: Path) -> None:
    """Put a pipe in the place of the file: whoever opens it without care waits for ever."""
    path.unlink()
    os.mkfifo(path)


def sidecar_path(store: LocalStore, space: str, content_id: str) -> Path:
    """Where the sidecar of an item of a local store is."""
    root, digest = Path(unquote(store.url.removeprefix("file://"))), hashlib.sha256(content_id.encode()).hexdigest()
    return root / ".millstream" / "sidecars" / space / digest[0] / f"{digest}.json"


def garble_sidecar(store: LocalStore, space: str, content_id: str) -> None:
    """Write garbage over the sidecar of an item, where it has one."""
    path = sidecar_path(store, space, content_id)
    if path.exists():
        path.write_bytes(b"\x00garbage\n\xff" * 20)


def forge(store: LocalStore, space: str, content_id: str, body: bytes) -> None:
    """Replace an item by *body*, with a sidecar that fits it and a fresh time, as whoever knows the format can."""
    info = store.info(space, content_id)
    store.put(space, content_id, io.BytesIO(body), mimetype=info.mimetype, properties=info.properties)


class ItemVersion(msgspec.Struct, frozen=True):
    """A version of an item of a local store: its file, its sidecar (None: there is none), its time in nanoseconds."""

    path: Path
    body: bytes
    mtime_ns: int
    sidecar: Path
    description: bytes | None


def take_version(store: LocalStore, space: str, content_id: str) -> ItemVersion:
    """The present version of an item, to be put back later."""
    path, sidecar = store.path_of(space, content_id), sidecar_path(store, space, content_id)
    description = sidecar.read_bytes() if sidecar.exists() else None
    return ItemVersion(path, path.read_bytes(), path.stat().st_mtime_ns, sidecar, description)


def put_back(version: ItemVersion) -> None:
    """Put an old *version* in the place of the present one, with its time and its sidecar."""
    version.path.unlink()
    version.path.write_bytes(version.body)
    os.utime(version.path, ns=(version.mtime_ns, version.mtime_ns))
    if version.description is not None:
        version.sidecar.write_bytes(version.description)
