"""The proof that an entry is in the signed ledger, made from its durable tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from millstream.anchoring.errors import INDEX_AHEAD, RESTORE_LEDGER, LedgerKeyError, LedgerReplacedError
from millstream.anchoring.ledger import Ledger, LedgerEntry
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.core.errors import BusyError

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp


class EntryProof(msgspec.Struct, frozen=True):
    """``path`` has the hashes (32 bytes each) from ``entry`` up to the root of ``checkpoint`` (a signed note).

    ``timestamps`` date checkpoints that have the entry, too.
    """

    entry: LedgerEntry
    path: Sequence[bytes]
    checkpoint: bytes
    timestamps: Sequence[EntryTimestamp] = ()


class SignedHead(Protocol):
    """A checkpoint (a signed note, ``data``) and the size of its tree."""

    @property
    def data(self) -> bytes: ...

    @property
    def size(self) -> int: ...


class SignedTree(Protocol):
    """The durable tree of a ledger; see :class:`millstream.anchoring.transparency.LedgerTree`."""

    def released(self) -> SignedHead | None:
        """The newest checkpoint that may be given out."""
        ...

    def checkpoint(self) -> SignedHead:
        """The checkpoint of the whole ledger, signed now where need be."""
        ...

    def inclusion_path(self, index: int, size: int | None = None) -> list[bytes]:
        """The path from the leaf at *index* (from 0) to the root of the first *size* leaves."""
        ...


def newest_checkpoint(tree: SignedTree, signer: CheckpointSigner, *, covers: int = 0) -> SignedHead:
    """The checkpoint of *tree* with the signatures of all keys of *signer*, and with entry number *covers* in its tree.

    It is signed now where need be. While another process writes to the ledger, or where this one may not read the key,
    an older one with the entry does too.
    """
    newest = tree.released()
    try:
        if newest is None or newest.size < covers or not signer.is_current(newest.data):
            return tree.checkpoint()
    except (BusyError, LedgerKeyError):
        if newest is None or newest.size < covers:
            raise
    return newest


def prove_entry(
    number: int, ledger: Ledger, tree: SignedTree, signer: CheckpointSigner, *, cosigned: SignedHead | None = None
) -> EntryProof:
    """The proof that entry *number* of *ledger* is in the tree of *cosigned*, or of its newest checkpoint.

    *cosigned* is a checkpoint that witnesses have signed, used if it covers the entry. Raises :class:`LedgerError`.
    """
    if cosigned is not None and cosigned.size >= number:
        head = cosigned
    else:
        head = newest_checkpoint(tree, signer, covers=number)
    entry = ledger.entry(number)
    if entry is None or head.size < number:
        raise LedgerReplacedError(f"the ledger has no entry {number:,}, {INDEX_AHEAD}. {RESTORE_LEDGER}")
    return EntryProof(entry, tree.inclusion_path(number - 1, head.size), head.data)
