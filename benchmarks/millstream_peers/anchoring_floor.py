"""The least that anchoring a log costs: the same files and anchors as ``pipeline anchor``, by one process a core.

``python -m millstream_peers.anchoring_floor STORE LOG FOLDER [PROCESSES]``, run in ``benchmarks/``, batches the whole
log, packs cuts, writes their files with a sync, reads them back, and appends to a ledger; it prints figures as JSON. It
has no Spark, repeats no task, and finds no batch by its name: one row a cut is all that it keeps. After a failure it
is run again in a new folder.
"""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from millstream.anchoring import LocalCas, LogLedger
from millstream.anchoring.batch_file_builder import build_files, build_manifest_over_files
from millstream.anchoring.cut_manifest import MAX_BATCHES, MAX_FILE_BYTES, anchor_string, encode_manifest
from millstream.anchoring.packing import PackedCut, pack_cut
from millstream.anchoring.states import BatchStream
from millstream.batching import BatchConfig, Rulebook
from millstream.bench.fleet import MAX_DELAY, WINDOW
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import LogSpec, open_store
from millstream.pipeline.planning.cut_plans import ENCODED, encoded_batches
from millstream.pipeline.shard_shares import shares_of, write_share
from millstream.pipeline.tasks.shard_task import ShardBatching

RULES = BatchConfig(WINDOW, MAX_DELAY)

_SHARD_ROWS, _TASKS_A_PROCESS = 500_000, 4
_ORDER = [("start", "ascending"), ("source", "ascending"), ("batch", "ascending")]


class Floor(msgspec.Struct, frozen=True):
    """What all steps know: the log, the folder for everything that is written, and how many shards there are."""

    store: str
    log: str
    folder: Path
    shards: int
    last_received: int = 0
    batches_a_cut: int = MAX_BATCHES

    def deal(self, ids: tuple[int, int]) -> int:
        """Deal the messages of a range of *ids* out to shards; returns when the last of them was received."""
        last = 0
        with open_store(self.store) as store:
            log = store.log(LogSpec(self.log), create=False)
            for part in log.read(*ids, MESSAGE_SCHEMA.names, gaps="none"):
                messages = part.arrow.select(MESSAGE_SCHEMA.names)
                span = pc.min_max(messages.column("received_at")).as_py()
                name = f"{span['min']:020}-{messages.column('id')[0].as_py():020}"
                for shard, share in shares_of(messages, self.shards, whole=True):
                    (self.folder / f"share-{shard}-{name}").write_bytes(write_share(share))
                last = max(last, span["max"])
        return last

    def batch(self, shard: int) -> list[tuple[int, str]]:
        """Batch *shard* into a file in the order of a manifest; returns its rejects."""
        paths = sorted(self.folder.glob(f"share-{shard}-*"))
        shares = ((shard, int(path.name.split("-")[2]), path.read_bytes()) for path in paths)
        steps = list(ShardBatching(Rulebook(RULES), whole=True).run(shares, self.last_received, flush=True))
        rows = pa.concat_tables(steps)
        refused = rows.filter(pc.is_null(rows["batch"]))
        rows = rows.filter(pc.is_valid(rows["batch"])).select(list(ENCODED)).sort_by(_ORDER)
        with pa.OSFile(str(self._path(shard)), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        for path in paths:
            path.unlink()
        return [(ids[0], why) for ids, why in zip(*(refused[n].to_pylist() for n in ("ids", "reason")), strict=True)]

    def pack(self, plan: Sequence[tuple[int, bytes]]) -> PackedCut:
        """Pack the cut of *plan*, which has rows of shards, as files that are synced and read back."""
        parts = [self.rows(shard).take(pa.array(np.frombuffer(own, np.int64))) for shard, own in plan]
        rows = pa.concat_tables(parts).sort_by(_ORDER).combine_chunks()
        return pack_cut(LocalCas(self.folder / "cas"), list(encoded_batches(rows)), MAX_FILE_BYTES)

    def rows(self, shard: int) -> pa.Table:
        """The batches of *shard*, which stay on the disk."""
        return pa.ipc.open_file(pa.memory_map(str(self._path(shard)))).read_all()

    def plans(self) -> Iterator[list[tuple[int, bytes]]]:
        """Which rows of which shards each cut has: batches by start, source and name, whatever their shard."""
        keys = [self.rows(shard).select([name for name, _ in _ORDER]) for shard in range(self.shards)]
        shard = np.repeat(np.arange(self.shards), list(map(len, keys)))
        row = np.concatenate([np.arange(len(own)) for own in keys])
        order = pc.sort_indices(pa.concat_tables(keys), _ORDER).to_numpy()
        for first in range(0, len(order), self.batches_a_cut):
            own = order[first : first + self.batches_a_cut]
            yield [(int(each), np.sort(row[own[shard[own] == each]]).tobytes()) for each in np.unique(shard[own])]

    def _path(self, shard: int) -> Path:
        return self.folder / f"batches-{shard}"


class Recorder:
    """Writes cuts down, anchors them, and writes down that it did: each step durable before the next."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._engine = sa.create_engine(f"sqlite:///{floor.folder / 'floor.db'}", isolation_level="AUTOCOMMIT")
        self._store = open_store(f"sqlite:///{floor.folder / 'ledger.db'}")
        self._ledger = LogLedger(self._store, SystemClock())
        self._cas = LocalCas(floor.folder / "cas")
        self._names, self._ids = np.empty(0, "S16"), list[np.ndarray[Any, Any]]()
        with self._engine.connect() as connection:
            for statement in ("journal_mode = wal", "synchronous = full"):
                connection.exec_driver_sql(f"PRAGMA {statement}")
            connection.exec_driver_sql("CREATE TABLE cuts (anchor TEXT, names BLOB, ids BLOB, number INTEGER)")

    def record(self, cut: PackedCut, rejects: Sequence[tuple[int, str]]) -> str:
        """Anchor *cut* with *rejects*; returns its anchor string."""
        batches = cut.batches
        names = np.sort(np.array(batches.names, "S16"))
        ids = np.sort(batches.members.ids)
        self._check(names, ids)
        stream = BatchStream(1, self._floor.log, canonical_json(msgspec.to_builtins(RULES)).decode())
        manifest = build_manifest_over_files(stream, cut.files, batches.leaf_hashes, rejects, MAX_FILE_BYTES)
        data = encode_manifest(manifest)
        *_, cid = self._cas.put_many([*build_files(manifest, (), rejects), data])
        text, head = anchor_string(manifest.count, cid), self._ledger.head()
        with self._engine.connect() as connection:
            insert = "INSERT INTO cuts (anchor, names, ids) VALUES (?, ?, ?)"
            connection.exec_driver_sql(insert, (text, names.tobytes(), ids.tobytes()))
            entry = self._ledger.append(text, after=head.number if head else 0)
            connection.exec_driver_sql("UPDATE cuts SET number = ? WHERE anchor = ?", (entry.number, text))
        return text

    def close(self) -> None:
        """Close ledger and database."""
        self._store.close()
        self._engine.dispose()

    def _check(self, names: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> None:
        """Raise where a batch or a message was anchored before."""
        near = [own for own in self._ids if own[0] <= ids[-1] and own[-1] >= ids[0]]
        again = any(len(np.intersect1d(own, ids, assume_unique=True)) for own in near)
        if again or np.isin(names, self._names).any() or any(np.diff(ids) == 0) or any(names[1:] == names[:-1]):
            raise RuntimeError("a batch or a message is anchored already")
        self._names, self._ids = np.concatenate([self._names, names]), [*self._ids, ids]


def anchor(store: str, log: str, folder: Path, processes: int, batches_a_cut: int = MAX_BATCHES) -> list[str]:
    """Anchor all messages of *log* in *store*, into the new *folder*; returns the anchor strings."""
    folder.mkdir(parents=True)
    with open_store(store) as opened:
        source = opened.log(LogSpec(log), create=False)
        first, last = source.first_id, source.last_id
    tasks = _TASKS_A_PROCESS * processes
    floor = Floor(store, log, folder, max(tasks, (last - first + 1) // _SHARD_ROWS), batches_a_cut=batches_a_cut)
    edges = np.linspace(first, last + 1, tasks + 1).astype(int).tolist()
    ranges = [(begin, end - 1) for begin, end in itertools.pairwise(edges) if begin < end]
    if processes == 1:
        return _run(floor, ranges, map)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return _run(floor, ranges, pool.map)


def _run(floor: Floor, ranges: Iterable[tuple[int, int]], each: Callable[..., Iterator[Any]]) -> list[str]:
    floor = msgspec.structs.replace(floor, last_received=max(each(floor.deal, ranges)))
    rejects = sorted(itertools.chain.from_iterable(each(floor.batch, range(floor.shards))))
    recorder, done = Recorder(floor), list[str]()
    for cut in each(floor.pack, floor.plans()):
        done.append(recorder.record(cut, [] if done else rejects))
    recorder.close()
    return done


if __name__ == "__main__":
    clock = SystemClock()
    began = clock.monotonic()
    anchors = anchor(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int((sys.argv[4:] or ["2"])[0]))
    own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = sum(each.ru_utime + each.ru_stime for each in (own, workers))
    figures = {"anchors": len(anchors), "last": anchors[-1], "seconds": clock.monotonic() - began, "cpu": cpu}
    print(msgspec.json.encode({**figures, "driver_mb": own.ru_maxrss // 1024}).decode())
