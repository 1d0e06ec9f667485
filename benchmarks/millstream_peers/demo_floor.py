"""The least that the steps of the demo cost with our guarantees on Spark: the same records, files, copies and checks.

``python -m millstream_peers.demo_floor FOLDER [LIMIT]``, run in ``benchmarks/``, needs a new FOLDER. Messages are
durable before they are batched. Batches are in files under their hashes, named by a chain of anchors, and read before
they are recorded. Copies are proven against the recorded checksum, and synced, before they are in place. Sweeps read
every bit. There are no policies, plans, queues, leases, audit log, reports or resumption, no proof is
made, messages are late by a simpler rule, and whatever is out of the ordinary ends the program.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.core.syncfs import sync_filesystem
from millstream.demo.arrivals import arrivals_of
from millstream.demo.delivery import DeliveryModel
from millstream.demo.plan import DemoPlan
from millstream.demo.stages.copies import standard_library
from millstream.pipeline.session import spark_session

WINDOW, DELAY, IN_ANCHOR, IN_FILE = 1_800_000_000, 1_200_000_000, 10_000, 1_700
COPIES = ("second", "third")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _root(leaves: Sequence[bytes]) -> bytes:
    while len(leaves) > 1:
        pairs = zip(leaves[::2], [*leaves[1::2], b""] if len(leaves) % 2 else leaves[1::2], strict=True)
        leaves = [_sha256(left + right) for left, right in pairs]
    return leaves[0]


def batched(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of the messages *parts*, in order of arrival, without those that are late or came before."""
    table, ids, batches = pa.Table.from_batches(list(parts)), list[bytes](), list[list[bytes]]()
    for source in table.column("source").unique().to_pylist() if len(table) else ():
        mine = table.filter(pc.equal(table.column("source"), source))
        times, keys = mine.column("event_time").to_numpy(), mine.column("key").to_pylist()
        in_time, seen = times >= np.maximum.accumulate(times) - DELAY, set[tuple[str, int]]()
        windows: dict[int, list[bytes]] = {}
        numbers, bodies = mine.column("id").to_pylist(), mine.column("body").to_pylist()
        for kept, number, time, key, body in zip(in_time.tolist(), numbers, times.tolist(), keys, bodies, strict=True):
            if kept and (key, time) not in seen:
                seen.add((key, time))
                windows.setdefault(time // WINDOW, []).append(b"%d %d %s %s" % (number, time, key.encode(), body))
        for _, messages in sorted(windows.items()):
            ids.append(_root([_sha256(message) for message in messages]))
            batches.append(messages)
    yield pa.record_batch({"id": pa.array(ids, pa.binary()), "messages": pa.array(batches, pa.list_(pa.binary()))})


def hashed(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The checksum of each file of *parts*; null for one that is not there."""
    for part in parts:
        paths = part.column("path").to_pylist()
        sums = [_sha256(Path(path).read_bytes()).hex() if Path(path).exists() else None for path in paths]
        yield pa.record_batch({"path": part.column("path"), "sha256": pa.array(sums, pa.string())})


class Floor:
    """The steps, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._head, self._root = folder, b"", os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._database = sqlite3.connect(folder / "floor.db", isolation_level=None, check_same_thread=False)
        self._database.executescript(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full;"
            "CREATE TABLE batches (id BLOB PRIMARY KEY, file TEXT) WITHOUT ROWID;"
            "CREATE TABLE manifest (path TEXT PRIMARY KEY, sha256 TEXT, outcome TEXT) WITHOUT ROWID"
        )

    def _write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(statement, rows)
        self._database.execute("COMMIT")

    def publish(self, log: str, messages: pa.Table) -> None:
        """Make *messages* durable, with ids."""
        table = messages.drop_columns(["headers"]).set_column(0, "id", pa.array(np.arange(1, len(messages) + 1)))
        with (self._folder / f"{log}.parquet").open("wb") as file:
            pq.write_table(table, file, compression="lz4", row_group_size=65_536)
            file.flush()
            os.fsync(file.fileno())

    def put(self, store: str, space: str, files: Sequence[tuple[str, Path]]) -> None:
        """Copy *files*, with their names, into *store*, in the way of the copies."""
        wanted = dict(self._database.execute("SELECT path, sha256 FROM manifest WHERE path LIKE 'primary/%'"))
        root = self._folder / store / space
        for folder in {(root / name).parent for name, _ in files}:
            folder.mkdir(parents=True, exist_ok=True)

        def draft(one: tuple[str, Path]) -> tuple[int, str]:
            data = one[1].read_bytes()
            sha256 = _sha256(data).hex()
            assert wanted.get(f"primary/{space}/{one[0]}", sha256) == sha256, one
            handle = os.open((root / one[0]).parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
            assert os.write(handle, data) == len(data), one
            return handle, sha256

        with ThreadPoolExecutor(4) as threads:
            drafts = list(threads.map(draft, files))
        sync_filesystem(self._root)
        for (name, _), (handle, _) in zip(files, drafts, strict=True):
            os.link(f"/proc/self/fd/{handle}", f"{store}/{space}/{name}", dst_dir_fd=self._root, follow_symlinks=True)
            os.close(handle)
        sync_filesystem(self._root)
        rows = [(f"{store}/{space}/{name}", sha256) for (name, _), (_, sha256) in zip(files, drafts, strict=True)]
        self._write("INSERT OR REPLACE INTO manifest (path, sha256) VALUES (?, ?)", rows)

    def anchor(self, spark: Any, log: str) -> None:
        """Batch *log*, write the batches to files under their hashes, and anchor, read back and record them."""
        arrived = spark.read.parquet(str(self._folder / f"{log}.parquet")).repartition("source")
        result = arrived.sortWithinPartitions("id").mapInArrow(batched, "id binary, messages array<binary>").toArrow()
        cas, index = self._folder / "primary/cas", list[tuple[bytes, str]]()
        cas.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(result), IN_ANCHOR):
            anchored, files = result.slice(first, IN_ANCHOR), list[tuple[str, Path]]()
            for at in range(0, len(anchored), IN_FILE):
                draft = self._folder / f"draft-{at}"
                pq.write_table(anchored.slice(at, IN_FILE), draft, compression="zstd")
                files.append((_sha256(draft.read_bytes()).hex(), draft))
            self.put("primary", "cas", files)
            root = _root(anchored.column("id").to_pylist())
            self._head = _sha256(self._head + root)
            with (self._folder / "ledger").open("a") as ledger:
                ledger.write(json.dumps([root.hex(), self._head.hex(), [name for name, _ in files]]) + "\n")
                ledger.flush()
                os.fsync(ledger.fileno())
            found = list[tuple[bytes, str]]()
            for name, _ in files:
                data = (cas / name).read_bytes()
                assert _sha256(data).hex() == name
                batches = pq.read_table(pa.BufferReader(data)).column("messages").to_pylist()
                found += [(_root([_sha256(message) for message in messages]), name) for messages in batches]
            assert _root([one for one, _ in found]) == root
            index += found
        self._write("INSERT INTO batches VALUES (?, ?)", index)

    def sweep(self, spark: Any) -> Sequence[str]:
        """Read every bit of every copy; returns the paths of those that are not as recorded."""
        known = dict(self._database.execute("SELECT path, sha256 FROM manifest"))
        paths = pa.table({"path": [str(self._folder / path) for path in known]})
        rows = spark.createDataFrame(paths).repartition(2).mapInArrow(hashed, "path string, sha256 string").toArrow()
        seen = {os.path.relpath(row["path"], self._folder): row["sha256"] for row in rows.to_pylist()}
        outcomes = [("SUCCESS" if seen[path] == sha256 else "FAILURE", path) for path, sha256 in known.items()]
        self._write("UPDATE manifest SET outcome = ? WHERE path = ?", outcomes)
        return [path for outcome, path in outcomes if outcome == "FAILURE"]

    def duplicate(self, store: str) -> None:
        """Copy the files of the first store into *store*."""
        for space in (self._folder / "primary").iterdir():
            files = [(str(path.relative_to(space)), path) for path in space.rglob("*") if path.is_file()]
            self.put(store, space.name, files)


def main(folder: Path, limit: int | None = None) -> None:
    """Run all steps on *limit* measurements of the weather, or all of them."""
    folder.mkdir()
    floor, plan = Floor(folder), DemoPlan(WINDOW, "", DeliveryModel(DELAY), limit, flights=True)
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        spark = threads.submit(lambda: stack.enter_context(spark_session(folder / "spark", registered=False)))
        files = threads.submit(floor.put, "primary", "python-stdlib", standard_library())
        for log, messages in arrivals_of(plan, None):
            floor.publish(log, messages())
        session, _ = spark.result(), files.result()
        for log in plan.logs:
            floor.anchor(session, log)
        for copy in COPIES:
            floor.duplicate(copy)
        assert not floor.sweep(session)
        flipped, deleted = (next(path for path in (folder / copy / "cas").iterdir()) for copy in COPIES)
        flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
        deleted.unlink()
        assert len(floor.sweep(session)) == len(COPIES)
        flipped.unlink()
        for path in (flipped, deleted):
            floor.put(path.parts[-3], "cas", [(path.name, folder / "primary/cas" / path.name)])
        assert not floor.sweep(session)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
