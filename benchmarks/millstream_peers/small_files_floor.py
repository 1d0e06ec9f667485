"""The least that small files cost with our guarantees: copied, swept and adopted by one process a core.

``python -m millstream_peers.small_files_floor``, run in ``benchmarks/``, with ``duplicate SOURCE COPY FOLDER``, ``sweep
COPY FOLDER`` or ``adopt SOURCE FOLDER`` works on the space ``small`` of local stores and keeps its database in FOLDER.
Copies are synced, proven against the checksum that the source recorded, intended before they are in place, recorded
durably in manifest and audit log, and have the sidecars of a local store. There is no policy, plan, lock or queue,
nothing is tried again, only names of one folder depth are known, and whatever is out of the ordinary ends the program.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import resource
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millstream.core.syncfs import sync_filesystem
from millstream.stores.local.sidecar import FileDescription, Sidecar, decode_sidecar, encode_sidecar
from millstream.stores.local.sidecar_files import sidecar_digest

SPACE = "small"
PROCESSES = 2
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TABLES = """
CREATE TABLE IF NOT EXISTS intents (folder TEXT PRIMARY KEY, items TEXT, at INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS manifest (store TEXT, id TEXT, sha256 TEXT, size INTEGER, mimetype TEXT, modified INTEGER,
    checked INTEGER, outcome TEXT, PRIMARY KEY (store, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (id TEXT, sha256 TEXT, size INTEGER, mimetype TEXT, properties TEXT, at INTEGER,
    action TEXT, PRIMARY KEY (id, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checks (id TEXT, at INTEGER, outcome TEXT, provider TEXT, content TEXT, recorded TEXT,
    PRIMARY KEY (id, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS catalog (id TEXT PRIMARY KEY, size INTEGER, version INTEGER, sha256 TEXT, at INTEGER)
    WITHOUT ROWID;
"""


@functools.cache
def _database(folder: str) -> sqlite3.Connection:
    database = sqlite3.connect(Path(folder, "floor.db"), timeout=60, isolation_level=None)
    database.executescript("PRAGMA journal_mode = wal; PRAGMA synchronous = full;" + _TABLES)
    return database


def _write(folder: str, *statements: tuple[str, Sequence[Sequence[Any]]]) -> None:
    """All *statements*, each with its rows, in one transaction that is durable."""
    database = _database(folder)
    database.execute("BEGIN IMMEDIATE")
    for text, rows in statements:
        database.executemany(text, rows)
    database.execute("COMMIT")


@functools.cache
def _folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _bytes(folder: int, name: str, size: int) -> tuple[bytes, os.stat_result]:
    handle = os.open(name, _READ, dir_fd=folder)
    try:
        data = os.read(handle, size)
        return data, os.fstat(handle)
    finally:
        os.close(handle)


def _sidecar_place(store: str, content_id: str) -> tuple[str, str]:
    digest = sidecar_digest(content_id).hex()
    return f"{store}/.millstream/sidecars/{SPACE}/{digest[0]}", f"{digest}.json"


def _described(store: str, content_id: str) -> FileDescription:
    folder, name = _sidecar_place(store, content_id)
    data, _ = _bytes(_folder(folder), name, 1 << 16)
    return decode_sidecar(data, content_id, lambda: name).files[-1]


def _filled(handle: int, data: bytes) -> int:
    if os.write(handle, data) != len(data):
        raise OSError("written short")
    return handle


def _names(*path: str) -> list[str]:
    return sorted(one.name for one in Path(*path).iterdir())


def duplicate(source: str, copy: str, database: str, folder: str) -> int:
    """Copy the files of *folder*; returns how many there were."""
    names, at = _names(source, SPACE, folder), time.time_ns() // 1000
    items = [f"{folder}/{name}" for name in names]
    target, read_from = _folder(f"{copy}/{SPACE}/{folder}"), _folder(f"{source}/{SPACE}/{folder}")
    if any(os.access(name, os.F_OK, dir_fd=target) for name in names):  # before the intent: it says what was there
        raise FileExistsError(folder)
    drafts, sidecars, described = [], [], []
    for name, item in zip(names, items, strict=True):
        known = _described(source, item)
        data, _ = _bytes(read_from, name, (known.size or 0) + 1)
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != known.sha256:  # proven against what the source recorded, before anything is in place
            raise ValueError(f"{item} is not what its store recorded")
        draft = _filled(os.open(".", _UNNAMED, 0o666, dir_fd=target), data)  # a crash leaves nothing of it
        status = os.fstat(draft)
        about = FileDescription(status.st_ino, status.st_mtime_ns, known.mimetype, len(data), sha256, known.properties)
        drafts.append(draft)
        sidecars.append(encode_sidecar(Sidecar(item, (about,))))
        described.append((item, sha256, len(data), known.mimetype, json.dumps(known.properties)))
    # Intended, durably, with what tells after a crash which of them happened
    _write(
        database, ("INSERT INTO intents VALUES (?, ?, ?)", [(folder, json.dumps([one[:2] for one in described]), at)])
    )
    for item, sidecar in zip(items, sidecars, strict=True):
        place, name = _sidecar_place(copy, item)
        os.close(_filled(os.open(name, _NEW, 0o666, dir_fd=_folder(place)), sidecar))
    sync_filesystem(target)  # bytes and descriptions are durable before an item is in its place
    for draft, name in zip(drafts, names, strict=True):
        os.link(f"/proc/self/fd/{draft}", name, dst_dir_fd=target, follow_symlinks=True)  # never replaces a file
        os.close(draft)
    os.fsync(target)  # the items are durable before they are recorded
    rows = [(store, *one[:4], at) for store in ("copy", "source") for one in described]
    _write(  # manifest, audit log and the end of the intent: durable, together
        database,
        ("INSERT INTO manifest (store, id, sha256, size, mimetype, modified) VALUES (?, ?, ?, ?, ?, ?)", rows),
        ("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, 'ADD_CONTENT')", [(*one, at) for one in described]),
        ("DELETE FROM intents WHERE folder = ?", [(folder,)]),
    )
    return len(names)


def sweep(copy: str, database: str, folder: str) -> int:
    """Check the copies of *folder* against sidecar, manifest and audit log; returns how many there were."""
    query = "SELECT id, m.sha256, a.sha256 FROM manifest m JOIN audit a USING (id) WHERE store='copy' AND id>? AND id<?"
    recorded = {row[0]: row[1:] for row in _database(database).execute(query, (f"{folder}/", f"{folder}0"))}
    names, at, read_from = _names(copy, SPACE, folder), time.time_ns() // 1000, _folder(f"{copy}/{SPACE}/{folder}")
    checks = []
    for name in names:
        item = f"{folder}/{name}"
        known = _described(copy, item)
        data, status = _bytes(read_from, name, (known.size or 0) + 1)
        content = hashlib.sha256(data).hexdigest()
        same = status.st_ino == known.inode and known.sha256 == content and recorded.pop(item) == (content, content)
        checks.append((item, at, "SUCCESS" if same else "FAILURE", known.sha256, content, content))
    if recorded or any(one[2] != "SUCCESS" for one in checks):
        raise ValueError(f"{folder}: not as recorded")
    noted = [(outcome, item) for item, _, outcome, *_ in checks]
    _write(
        database,
        ("INSERT INTO checks VALUES (?, ?, ?, ?, ?, ?)", checks),
        ("UPDATE manifest SET checked = ?, outcome = ? WHERE store = 'copy' AND id = ?", [(at, *one) for one in noted]),
    )
    return len(names)


def adopt(source: str, database: str, folder: str) -> int:
    """Read the files of *folder* once, and record what they hash to; returns how many there were."""
    names, at, read_from = _names(source, SPACE, folder), time.time_ns() // 1000, _folder(f"{source}/{SPACE}/{folder}")
    rows = []
    for name in names:
        before = os.stat(name, dir_fd=read_from, follow_symlinks=False)
        data, after = _bytes(read_from, name, before.st_size + 1)
        if (before.st_ino, before.st_size, before.st_mtime_ns) != (after.st_ino, len(data), after.st_mtime_ns):
            raise ValueError(f"{folder}/{name} changes while it is read")
        sha256 = hashlib.sha256(data).hexdigest()
        rows.append((f"{folder}/{name}", len(data), after.st_mtime_ns, sha256, at))
    manifest = [("source", name, sha256, size, when) for name, size, _, sha256, when in rows]
    _write(
        database,
        ("INSERT INTO manifest (store, id, sha256, size, modified) VALUES (?, ?, ?, ?, ?)", manifest),
        ("INSERT INTO catalog VALUES (?, ?, ?, ?, ?)", rows),
    )
    return len(names)


def main(act: str, *places: str) -> int:
    """Do *act* with every folder of the space below the first of *places*; returns how many files there were."""
    work: dict[str, Callable[..., int]] = {"duplicate": duplicate, "sweep": sweep, "adopt": adopt}
    folders = _names(places[0], SPACE)
    if act == "duplicate":
        digits = [f".millstream/sidecars/{SPACE}/{digit}" for digit in "0123456789abcdef"]
        for path in [*(f"{SPACE}/{folder}" for folder in folders), *digits]:
            Path(places[1], path).mkdir(parents=True)
    Path(places[-1]).mkdir(parents=True, exist_ok=True)
    _database.__wrapped__(places[-1]).close()  # two processes that make it at once would lock one another out
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)  # for drafts
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        return sum(pool.imap_unordered(functools.partial(work[act], *places), folders))


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
