"""The signed tree of a ledger: what an anchor and a proof cost at different sizes of the ledger."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import sqlalchemy as sa

from millstream.anchoring import LogLedger, prove
from millstream.anchoring.cut_manifest import anchor_string
from millstream.anchoring.index import AnchorIndex, AnchorStatus, MessageLocation
from millstream.anchoring.ledger import LedgerEntry, encode_entry, entry_hash, next_entry
from millstream.anchoring.merkle import leaf_hash, verify_inclusion
from millstream.anchoring.proof import Trust, verify_proof
from millstream.anchoring.transparency import FolderFiles, GrowingTree, LedgerTree, TreePlaces
from millstream.anchoring.transparency.entry_proof import EntryProof
from millstream.anchoring.transparency.keys import LedgerKeys, LedgerSigner
from millstream.anchoring.transparency.policy import trusting
from millstream.anchoring.transparency.tree import TILE_WIDTH
from millstream.anchoring.transparency.tree_tables import DatabaseTiles, TreeState, make_tree_tables, write_state
from millstream.bench.anchoring.timing import timed
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.cid import cid_of
from millstream.core.clock import SystemClock
from millstream.core.sql import writing
from millstream.log import Log, Message, open_store, system_log
from millstream.node import Node
from millstream.settings import Settings
from millstream.testing.batches import CONFIG, make_batch

SIZES: dict[Size, Sequence[int]] = {"quick": [300], "small": [1_000, 100_000], "full": [1_000, 100_000, 10_000_000]}
TAKEN_OVER: dict[Size, int] = {"quick": 300, "small": 10_000, "full": 100_000}
_ANCHORS: dict[Size, int] = {"quick": 5, "small": 200, "full": 300}
_CHUNK = 1 << 16
_ANCHOR = anchor_string(1, cid_of(b"bench"))
_clock = SystemClock()


def trees_of_ledgers(size: Size, folder: Path) -> Iterator[Comparison]:
    """Anchors and proofs at each size, and a ledger without a tree that is taken over."""
    for entries in SIZES[size]:
        bench = _TreeOfSize(folder / f"tree-{entries}", entries - entries % TILE_WIDTH, _ANCHORS[size])
        yield Comparison(
            title=f"The signed tree of a ledger of {entries:,} entries",
            unit="operations/s",
            conditions="An anchor: the entry is hashed, the tree extended, and its head signed and stored in node.db; "
            "the append to the ledger itself is not counted. Tiles are two or three files per anchor, and the "
            "checkpoint. The ledger part of a proof is the inclusion path to the newest checkpoint, from node.db. A "
            "proof is for a message in an anchor of 100 small batches, with its files, and is verified with the key of "
            "the ledger.",
            contenders=[
                Contender("an anchor, without syncs", partial(bench.anchors, durable=False)),
                Contender(
                    "an anchor, tiles in memory, without syncs", partial(bench.anchors, durable=False, tiles="memory")
                ),
                Contender("an anchor, durable", bench.anchors),
                Contender("an anchor, copy and tiles in folders, durable", partial(bench.anchors, tiles="folder")),
                Contender("the ledger part of a proof", bench.paths),
                Contender("a proof is made", bench.proofs),
                Contender("a proof is verified", partial(bench.proofs, verified=True)),
            ],
        )
    count = TAKEN_OVER[size]
    yield Comparison(
        title=f"A ledger of {count:,} entries without a tree is taken over",
        unit="entries/s",
        conditions="Entries are read from a log in memory, and their chain is checked. They are hashed, and the head "
        "is signed once. Writes to node.db are durable.",
        contenders=[
            Contender("appended one by one", partial(_take_over, folder / "one-by-one", count, 1)),
            Contender("in blocks of 4,096", partial(_take_over, folder / "blocks", count, 4_096)),
        ],
        once=True,
    )


class _LateLedger(LogLedger):
    """The end of a long ledger: entries from number *size* on; those before are not there."""

    def __init__(self, size: int) -> None:
        sealed = (_ANCHOR, size, "a" * 64, 1)
        self._late = [LedgerEntry(_ANCHOR, entry_hash(*sealed), *sealed[1:])]
        self.add()

    def add(self, anchor: str = _ANCHOR) -> LedgerEntry:
        self._late.append(next_entry(self._late[-1], anchor, _clock.now()))
        return self._late[-1]

    @property
    def last_number(self) -> int:
        return self._late[-1].number

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[LedgerEntry]:
        before = self._late[0].number
        return iter(self._late[max(0, first - before) : None if last is None else last - before + 1])


class _MovedIndex:
    """The index of a node with one anchor, which *entry* of a larger ledger has as well."""

    def __init__(self, index: AnchorIndex, entry: LedgerEntry) -> None:
        self._index, self._entry = index, entry

    def locate(self, log: str, message_id: int) -> MessageLocation | None:
        return self._index.locate(log, message_id)

    def anchor(self, number: int) -> AnchorStatus | None:
        status = self._index.anchor(number)
        return status and msgspec.structs.replace(status, hash=self._entry.hash)

    def leaves(self, number: int) -> Sequence[bytes]:
        return self._index.leaves(number)


class _MemoryFiles:
    """Published files that end with the process."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self._files.get(path)

    def put(self, path: str, data: bytes, media: str) -> None:  # noqa: ARG002 - memory keeps no media types
        self._files[path] = data

    def delete_below(self, path: str) -> None:
        for name in [name for name in self._files if name.startswith(f"{path}/")]:
            del self._files[name]


class _TreeOfSize:
    """A tree of *entries* leaves in *folder*, made once; *count* anchors are added to a copy of it."""

    def __init__(self, folder: Path, entries: int, count: int) -> None:
        self._folder, self._entries, self._count = folder, entries, count
        self._copies = itertools.count()

    def anchors(self, *, durable: bool = True, tiles: str = "") -> Measurement:
        """Anchors a second; processor time of each."""
        with self._opened(durable=durable, tiles=tiles) as (ledger, tree):
            ledger.add()
            tree.advance()  # what is read and published once
            entries = [ledger.add() for _ in range(self._count)]
            sample = timed(self._count, lambda: [tree.advance(entry) for entry in entries])
            assert tree.status().signed == ledger.last_number, "all is signed"
            return sample

    def proofs(self, *, verified: bool = False) -> Measurement:
        """Proofs of messages a second, made or *verified*; ``bytes`` is the size of the largest."""
        with (
            self._opened() as (ledger, tree),
            Node.open(Settings(data=str(self._folder / "node")), create=True) as node,
        ):
            node.anchoring.batch_writer.add(
                "bench", [make_batch(range(first, first + 10)) for first in range(1, 1000, 10)], config=CONFIG
            )
            (own,) = node.anchoring.batch_writer.cut(force=True)
            entry = ledger.add(own.anchor_string)
            for _ in range(TILE_WIDTH // 2 - 2):  # a path has most hashes where the tree is not full
                ledger.add()
            signed = tree.advance()
            assert signed is not None

            def prove_entry(_: int) -> EntryProof:
                return EntryProof(entry, tree.inclusion_path(entry.number - 1, signed.size), signed.data)

            anchoring, ids = node.anchoring, [1 + at * 997 % 1000 for at in range(self._count)]
            index = cast("AnchorIndex", _MovedIndex(anchoring.observer.index, entry))
            make = partial(prove, "bench", index=index, cas=anchoring.cas, ledger=ledger)
            made = [make(message, prove_entry=prove_entry) for message in ids]
            keys = LedgerKeys(self._folder / "keys", "anchors", _clock)
            trust = Trust(policy=trusting([key.verifier_key for key in keys.signing()]))

            def work() -> None:
                for message, data in zip(ids, made, strict=True):
                    if verified:
                        assert verify_proof(data, anchoring.cas, trust).pinned
                    else:
                        make(message, prove_entry=prove_entry)

            sample = timed(self._count, work)
        shutil.rmtree(self._folder / "node")
        return Measurement(sample.value, {**sample.figures, "bytes": max(map(len, made))})

    def paths(self) -> Measurement:
        """Paths a second, of leaves all over the tree."""
        with self._opened() as (ledger, tree):
            newest = tree.advance()
            assert newest is not None
            places = [self._entries * at // self._count for at in range(self._count)]
            sample = timed(self._count, lambda: [tree.inclusion_path(place, newest.size) for place in places])
            leaf = leaf_hash(encode_entry(next(ledger.entries(newest.size))))
            verify_inclusion(leaf, newest.size - 1, newest.size, tree.inclusion_path(newest.size - 1), newest.root)
            return sample

    @contextlib.contextmanager
    def _opened(self, *, durable: bool = True, tiles: str = "") -> Iterator[tuple[_LateLedger, LedgerTree]]:
        ledger, place = _LateLedger(self._entries), self._folder / str(next(self._copies))
        place.mkdir(parents=True)
        shutil.copy(self._made(leaf_hash(encode_entry(next(ledger.entries(self._entries))))), place / "node.db")
        engine = _engine(place / "node.db", durable=durable)
        signer = LedgerSigner(LedgerKeys(self._folder / "keys", "anchors", _clock))
        places = TreePlaces()
        if tiles:
            published = FolderFiles(place / "tiles", "anchors", create=True) if tiles == "folder" else _MemoryFiles()
            copy = FolderFiles(place / "copies", "anchors", create=True) if tiles == "folder" else _MemoryFiles()
            places = TreePlaces(copy=copy, tiles=published)
        tree = LedgerTree(ledger, lambda: engine, "anchors", signer=lambda: signer, places=lambda: places)
        if places.tiles is not None:  # as if all before had been published
            places.tiles.put("checkpoint", signer.sign(self._entries, tree.root()), "text/plain")
        try:
            yield ledger, tree
        finally:
            engine.dispose()
            shutil.rmtree(place)

    def _made(self, last: bytes) -> Path:
        """A database with the tree, whose leaf before the ledger's end is *last*."""
        path = self._folder / "node.db"
        if not path.exists():
            engine = _engine(path, durable=False)
            make_tree_tables(engine)
            tiles = DatabaseTiles(engine, "anchors")
            tree = GrowingTree(tiles)
            while tree.size < self._entries:
                end = min(self._entries, tree.size + _CHUNK)
                leaves = [leaf_hash(b"%d" % number) for number in range(tree.size, end)]
                with writing(engine) as tiles.connection:
                    tree.extend([*leaves[:-1], last] if end == self._entries else leaves)
                    write_state(tiles.connection, "anchors", TreeState(tree.size))
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            engine.dispose()
        return path


def _take_over(folder: Path, count: int, block: int) -> Measurement:
    """A ledger of *count* entries, which came in blocks of *block*, gets its tree and one signature."""
    folder.mkdir()
    engine = _engine(folder / "node.db", durable=True)
    with open_store("memory://") as store:
        _fill(store.log(system_log("ledger", "ledger")), count, block)
        ledger = LogLedger(store, _clock)
        signer = LedgerSigner(LedgerKeys(folder / "keys", "anchors", _clock))
        tree = LedgerTree(ledger, lambda: engine, "anchors", signer=lambda: signer)
        sample = timed(count, tree.checkpoint)
        assert tree.status().signed == count, "all is signed"
    engine.dispose()
    return sample


def _fill(log: Log, count: int, block: int) -> None:
    """Append *count* entries to *log*, in blocks of *block*."""
    head: LedgerEntry | None = None
    with log.writer(producer="ledger") as writer:
        for start in range(0, count, block):
            messages = []
            for number in range(start, min(count, start + block)):
                head = next_entry(head, _ANCHOR, number)
                messages.append(Message(encode_entry(head), source="ledger", event_time=head.time))
            writer.append(messages)


def _engine(path: Path, *, durable: bool) -> sa.Engine:
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))

    def prepare(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        cursor.close()

    sa.event.listen(engine, "connect", prepare)
    return engine
