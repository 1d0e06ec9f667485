"""The durable tree of one ledger: it follows the ledger, and one step signs its head (docs/formats/ledger-tree.md)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from millstream.anchoring.errors import NODE_LOGS, LedgerError
from millstream.anchoring.ledger import LedgerEntry, checked_chain, encode_entry, follows
from millstream.anchoring.log_ledger import LogLedger
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency.published_files import PublishedFiles
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.anchoring.transparency.tiles import CHECKPOINT, CHECKPOINT_MEDIA, TilePublisher
from millstream.anchoring.transparency.tree import GrowingTree, MerkleTree
from millstream.anchoring.transparency.tree_check import VerifiedTree, entry_differs, ledger_is_shorter, verify_tree
from millstream.anchoring.transparency.tree_tables import (
    DatabaseTiles,
    SignedCheckpoint,
    TreeState,
    make_tree_tables,
    read_state,
    require_signed_row,
    write_problem,
    write_state,
)
from millstream.core.cached import locked_cached_property
from millstream.core.errors import MillstreamError
from millstream.core.sql import writing

CHUNK = 1 << 16
"""Number of entries that are added in one transaction when a tree is rebuilt."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class TreePlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the newest checkpoint outside the node's folder (``copy``), and the location of published
    tiles."""

    copy: PublishedFiles | None = None
    tiles: PublishedFiles | None = None


class TreeStatus(msgspec.Struct, frozen=True):
    """How far the tree of a ledger is: entries of the ledger, leaves of the tree, size of the newest checkpoint.

    ``problem`` is why the last attempt to sign, copy or publish failed after an append, None where it did not.
    """

    entries: int
    size: int
    signed: int | None
    problem: str | None = None


class TreeRoot(msgspec.Struct, frozen=True):
    """The ``root`` (32 bytes) of the tree of ``size`` leaves."""

    size: int
    root: bytes


class _KnownTree(msgspec.Struct):
    """The tree as this process wrote it last: nothing of it has to be read again while no other process writes."""

    tiles: DatabaseTiles
    tree: GrowingTree
    head: LedgerEntry | None
    """The entry of the last leaf."""
    problem: str | None = None
    """That of the :class:`TreeState`."""


class LedgerTree:
    """The tree of *ledger*, known as *name* in a database, and its newest checkpoint. Thread-safe.

    *engine*, *signer* and *places* are asked for when they are first needed.

    Once :meth:`follow` was called, each append to the ledger extends the tree and, where there is a *signer*, signs its
    head.
    """

    def __init__(
        self,
        ledger: LogLedger,
        engine: Callable[[], sa.Engine],
        name: str,
        *,
        signer: Callable[[], CheckpointSigner] | None = None,
        places: Callable[[], TreePlaces] = TreePlaces,
    ) -> None:
        self._ledger = ledger
        self._open_engine = engine
        self._name = name
        self._make_signer = signer
        self._open_places = places
        self._turn = threading.Lock()
        self._known: _KnownTree | None = None
        self._problem: str | None = None
        self._trusted: SignedCheckpoint | None = None
        """The newest checkpoint, once this process has signed it or checked its signature."""

    @locked_cached_property
    def signer(self) -> CheckpointSigner | None:
        """The signer of the tree's heads."""
        return self._make_signer() if self._make_signer else None

    @property
    def required_signer(self) -> CheckpointSigner:
        """The signer of the tree's heads. Raises :class:`LedgerError` if there is none."""
        if self.signer is None:
            raise LedgerError(
                f"the ledger {self._name!r} is not signed: this process has no signing key for the ledger"
            )
        return self.signer

    @locked_cached_property
    def places(self) -> TreePlaces:
        """The locations of copied checkpoints and published tiles."""
        return self._open_places()

    @locked_cached_property
    def _engine(self) -> sa.Engine:
        engine = self._open_engine()
        make_tree_tables(engine)
        return engine

    @locked_cached_property
    def _publisher(self) -> TilePublisher | None:
        return TilePublisher(self.places.tiles) if self.places.tiles else None

    def follow(self) -> None:
        """Let each append to the ledger extend the tree, sign its head and publish it.

        What fails then is logged, and done at the next append or by :meth:`checkpoint`: an entry that was appended
        stands.
        """
        self._ledger.on_append(self._follow)

    def checkpoint(self) -> SignedCheckpoint:
        """Extend the tree to the ledger's end, and return its checkpoint: the newest one, or one that is signed now.

        When it returns, the checkpoint is durable, in the copy outside the folder, and published. Raises
        :class:`LedgerError` where the ledger, the copy or what is published does not fit the tree,
        :class:`LedgerUnavailableError` where a place outside the folder cannot be used, a ``BusyError`` while another
        process writes to the ledger.
        """
        _ = self.required_signer
        with self._ledger.exclusive():
            signed = self.advance(None)
        assert signed is not None
        return signed

    def advance(self, entry: LedgerEntry | None = None) -> SignedCheckpoint | None:
        """Extend the tree, sign its head, write the copy and publish, in this order; the caller holds the lease.

        *entry* is the last one of the ledger, where it is known. Returns the checkpoint, None where there is no signer.
        Errors: see :meth:`checkpoint`.
        """
        with self._turn:
            signer, copy = self.signer, self.places.copy
            kept = self._kept() if signer else {}
            signed = self._extend(entry, kept, signer=signer)
            if signed is None or signer is None:
                return None
            if copy:
                self._put_copy(copy, kept.get(str(copy)), signed, signer)
            if self._publisher and self._known:
                place = str(self._publisher.files)
                found = SignedCheckpoint.read(kept[place], signer, place) if place in kept else None
                self._publisher.publish(signed, self._known.tree, lambda first: self._lines(first, entry), found)
            self._problem = None
            if self._known and self._known.problem:
                self._keep_problem(None)
            return signed

    def publish_cosigned(self, data: bytes) -> None:
        """Publish *data*, the newest checkpoint that the quorum of witnesses has signed, where tiles are published.

        Raises :class:`LedgerUnavailableError`, a ``BusyError`` while another process writes to the ledger.
        """
        if self._publisher is not None:
            with self._ledger.exclusive(), self._turn:
                self._publisher.publish_cosigned(data)

    def extend(self) -> int:
        """Extend the tree to the ledger's end without signing; returns its size. Errors: see :meth:`checkpoint`."""
        with self._ledger.exclusive(), self._turn:
            self._extend(None, {}, signer=None)
        return self.size

    def newest(self) -> SignedCheckpoint | None:
        """The newest checkpoint that was signed, None before the first."""
        return self._read(lambda state, _: state.checkpoint)

    def released(self) -> SignedCheckpoint | None:
        """The newest checkpoint that may be given out: where checkpoints are copied, one whose copy is written.

        None where there is none, or where :meth:`checkpoint` would find a fault. Raises
        :class:`LedgerUnavailableError` where the copy cannot be read.
        """
        newest, copy = self.newest(), self.places.copy
        if newest is None or copy is None:
            return newest
        copied = copy.read(CHECKPOINT)
        if copied is None or copied == newest.data:
            return newest if copied else None
        signed = SignedCheckpoint.read(copied, self.required_signer, str(copy))
        return signed if signed.size <= self.size and self.root(signed.size) == signed.root else None

    @property
    def size(self) -> int:
        """How many leaves the tree has; the ledger may have more entries."""
        return self._read(lambda state, _: state.size)

    def root(self, size: int | None = None) -> bytes:
        """The root (32 bytes) of the first *size* entries. Raises :class:`MerklePathError`."""
        return self._read(lambda _, tree: tree.root(size))

    def inclusion_path(self, index: int, size: int | None = None) -> list[bytes]:
        """See :meth:`MerkleTree.inclusion_path`; the entry at *index* has number *index* + 1."""
        return self._read(lambda _, tree: tree.inclusion_path(index, size))

    def consistency_path(self, old: int, new: int | None = None) -> list[bytes]:
        """See :meth:`MerkleTree.consistency_path`."""
        return self._read(lambda _, tree: tree.consistency_path(old, new))

    def status(self) -> TreeStatus:
        """How far the tree is."""
        state = self._read(lambda state, _: state)
        signed = state.checkpoint.size if state.checkpoint else None
        return TreeStatus(self._ledger.last_number, state.size, signed, state.problem or self._problem)

    def verify(self) -> VerifiedTree:
        """Compare the ledger's entries with the tree, and with what is kept and published outside the folder.

        Raises :class:`LedgerError` that names the first difference, :class:`LedgerUnavailableError`.
        """
        signer = None if self._make_signer is None else lambda: self.required_signer
        return verify_tree(
            self._ledger, self._engine, self._name, signer=signer, copy=self.places.copy, tiles=self.places.tiles
        )

    def _read(self, query: Callable[[TreeState, MerkleTree], Result]) -> Result:
        with self._engine.connect() as connection:
            state = read_state(connection, self._name)
            return query(state, MerkleTree(DatabaseTiles(self._engine, self._name, connection), state.size))

    def _kept(self) -> Mapping[str, bytes]:
        """The checkpoints that are kept outside the folder, by where: the copy, and what is published.

        The latter is read once: then this process publishes.
        """
        places = [self.places.copy, self.places.tiles if self._publisher and not self._publisher.is_known else None]
        found = {str(place): place.read(CHECKPOINT) for place in places if place is not None}
        return {where: data for where, data in found.items() if data is not None}

    def _put_copy(
        self, copy: PublishedFiles, before: bytes | None, signed: SignedCheckpoint, signer: CheckpointSigner
    ) -> None:
        """Write the copy of *signed*, but never over a larger one: this process may have been stopped for long."""
        if before == signed.data:
            return
        now = copy.read(CHECKPOINT)
        if now is None or now == before or signer.read(now, str(copy)).size <= signed.size:
            copy.put(CHECKPOINT, signed.data, CHECKPOINT_MEDIA)

    def _follow(self, entry: LedgerEntry | None) -> None:
        try:
            self.advance(entry)
        except Exception as error:  # the entry is durable: whatever it is, the append has not failed
            problem = str(error) or type(error).__name__
            text = "the newest entries of the ledger %s are not covered by a checkpoint: %s"
            _log.warning(text, self._name, problem, exc_info=not isinstance(error, MillstreamError))
            try:
                self._keep_problem(problem)
            except (MillstreamError, sa.exc.SQLAlchemyError):  # then only this process knows
                self._problem = problem

    def _keep_problem(self, problem: str | None) -> None:
        """Write down *problem*, so that the status of the node shows it."""
        with writing(self._engine) as connection:
            write_problem(connection, self._name, problem)
        if self._known:
            self._known.problem = problem

    def _lines(self, index: int, entry: LedgerEntry | None) -> Iterator[bytes]:
        """The entries from *index* (from 0) on, as lines; *entry* is the last one, where it is known."""
        if entry is not None and entry.number == index + 1:
            return iter([encode_entry(entry)])
        return map(encode_entry, self._ledger.entries(index + 1))

    def _extend(
        self, entry: LedgerEntry | None, kept: Mapping[str, bytes], *, signer: CheckpointSigner | None
    ) -> SignedCheckpoint | None:
        """Extend the tree to the ledger's end, whose last entry is *entry* where it is known, and sign it.

        *kept* are the checkpoints outside the folder, by where they are.
        """
        try:
            while True:
                known = self._known = self._known or self._load()
                entries = self._new_entries(known, entry)
                is_end = len(entries) < CHUNK
                with self._transaction(known) as connection:
                    state = read_state(connection, self._name)
                    if state.size != known.tree.size:  # another process was here
                        self._known = None
                        continue
                    known.problem = state.problem
                    before = TreeRoot(state.size, known.tree.root())
                    self._add(known, entries)
                    signed = state.checkpoint
                    if is_end and signer is not None:
                        signed = self._sign(known.tree, before, state.checkpoint, kept, signer)
                    if entries or signed is not state.checkpoint:
                        write_state(connection, self._name, TreeState(known.tree.size, signed))
                if is_end:
                    return signed
        except BaseException:
            self._known = None  # it may have leaves that were not committed
            raise

    @contextlib.contextmanager
    def _transaction(self, known: _KnownTree) -> Iterator[sa.Connection]:
        with writing(self._engine) as connection:
            known.tiles.connection = connection
            try:
                yield connection
            finally:
                known.tiles.connection = None

    def _load(self) -> _KnownTree:
        """The tree as it is in the database, whose last leaf must be that entry of the ledger."""
        with self._engine.connect() as connection:
            tiles = DatabaseTiles(self._engine, self._name, connection)
            tree = GrowingTree(tiles, read_state(connection, self._name).size)
            head = self._require_last(tree) if tree.size else None
            tiles.connection = None
        return _KnownTree(tiles, tree, head)

    def _new_entries(self, known: _KnownTree, entry: LedgerEntry | None) -> Sequence[LedgerEntry]:
        """The entries after the last leaf, fewer than CHUNK where these are all."""
        if entry is not None and entry.number == known.tree.size + 1:
            return [follows(entry, known.head)]
        coming = checked_chain(self._ledger.entries(known.tree.size + 1), known.head)
        entries = list(itertools.islice(coming, CHUNK))
        if not entries and self._ledger.last_number < known.tree.size:
            raise ledger_is_shorter(self._name, self._ledger.last_number, known.tree.size)
        return entries

    def _add(self, known: _KnownTree, entries: Sequence[LedgerEntry]) -> None:
        if entries:
            known.tree.extend([leaf_hash(encode_entry(entry)) for entry in entries])
            known.head = entries[-1]

    def _sign(
        self,
        tree: MerkleTree,
        before: TreeRoot,
        newest: SignedCheckpoint | None,
        kept: Mapping[str, bytes],
        signer: CheckpointSigner,
    ) -> SignedCheckpoint:
        """The checkpoint of *tree*, which must begin with the trees of the *newest* one and of all *kept* ones.

        Also with that of the last one that this process has signed or checked: a database may lose commits when it
        fails over.
        """
        trusted = self._trusted
        if trusted is not None and trusted != newest:
            self._require_prefix(tree, before, TreeRoot(trusted.size, trusted.root), "the last checkpoint signed here")
        if newest is not None:
            self._require_signed(newest, signer)
            self._require_prefix(tree, before, TreeRoot(newest.size, newest.root), "the newest checkpoint")
        for where, data in kept.items():
            if newest is None or data != newest.data:
                head = signer.read(data, where)
                self._require_prefix(tree, before, TreeRoot(head.size, head.root), f"the checkpoint in {where}")
        if newest is not None and newest.size == tree.size and signer.is_current(newest.data):
            return newest
        root = tree.root()
        self._trusted = SignedCheckpoint(signer.sign(tree.size, root), tree.size, root)
        return self._trusted

    def _require_signed(self, newest: SignedCheckpoint, signer: CheckpointSigner) -> None:
        """Size and root of *newest* are those that were signed: the row could have been changed."""
        if newest == self._trusted:
            return
        require_signed_row(newest, signer, self._name)
        self._trusted = newest

    def _require_prefix(self, tree: MerkleTree, before: TreeRoot, signed: TreeRoot, where: str) -> None:
        if signed == before or (signed.size <= tree.size and tree.root(signed.size) == signed.root):
            return
        raise LedgerError(
            f"{where} covers {signed.size:,} entries, which are not the first of the {tree.size:,} entries of the "
            f"ledger {self._name!r}: the node was restored from an older backup, its database lost commits, or its "
            "ledger was changed. Nothing is signed, because one key must not sign two different ledgers. Restore the "
            f"newest state of {NODE_LOGS}; if it is lost, start a ledger with a new key (docs/formats/ledger-tree.md)"
        )

    def _require_last(self, tree: MerkleTree) -> LedgerEntry:
        """The entry of the tree's last leaf."""
        last = self._ledger.entry(tree.size)
        if last is None:
            raise ledger_is_shorter(self._name, self._ledger.last_number, tree.size)
        self._require_leaf(tree, last)
        return last

    def _require_leaf(self, tree: MerkleTree, entry: LedgerEntry) -> None:
        if tree.leaf(entry.number - 1) != leaf_hash(encode_entry(entry)):
            raise entry_differs(self._name, entry.number)
