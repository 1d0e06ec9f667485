"""Checkpoints: the size and the root of a ledger's tree as a signed note (c2sp.org/tlog-checkpoint@v1.0.0)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from millstream.anchoring.errors import CheckpointError, NoteError
from millstream.anchoring.transparency.signed_note import (
    SignedNote,
    VerifierKey,
    decode_base64,
    encode_base64,
    is_key_name,
    parse_note,
    verify_note,
)

MAX_TREE_SIZE = 2**63 - 1
"""The most entries of a tree."""

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9.]*://")


class Checkpoint(msgspec.Struct, frozen=True):
    """The head of a tree: ``origin`` names the ledger, ``size`` counts its entries, ``root`` has 32 bytes.

    ``extensions`` are lines of other programs; none are written here.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text that is signed, with its last newline."""
        return "".join(f"{line}\n" for line in (self.origin, self.size, encode_base64(self.root), *self.extensions))


def parse_checkpoint(note: SignedNote) -> Checkpoint:
    """The checkpoint that *note* signs; signatures are not checked. Raises :class:`CheckpointError`."""
    lines = note.text[:-1].split("\n")
    if len(lines) < 3 or not all(lines):
        raise CheckpointError(
            "invalid checkpoint: expected three lines (origin, number of entries, root hash) and no empty line "
            "before the signatures"
        )
    origin, size, encoded, *extensions = lines
    if not _SIZE.fullmatch(size) or int(size) > MAX_TREE_SIZE:
        raise CheckpointError(
            f"invalid checkpoint: the number of entries is {size[:40]!r}, not a decimal number from 0 to "
            f"{MAX_TREE_SIZE}"
        )
    try:
        root = decode_base64(encoded, "the root hash of the checkpoint")
    except NoteError as error:
        raise CheckpointError(str(error)) from error
    if len(root) != 32:
        raise CheckpointError(f"invalid checkpoint: the root hash has {len(root):,} bytes, not 32")
    return Checkpoint(origin, int(size), root, tuple(extensions))


def check_origin(origin: str) -> str:
    """*origin*, with which a new ledger may be named. Raises :class:`CheckpointError`."""
    if not is_key_name(origin) or not origin.isprintable() or _SCHEME.match(origin) or len(origin) > 255:
        raise CheckpointError(
            f"invalid origin {origin[:80]!r}: use at most 255 characters in the form of a URL without its scheme, "
            "such as example.org/ledger, and no spaces or '+'"
        )
    return origin


def read_checkpoint(data: bytes, origin: str, keys: Sequence[VerifierKey]) -> Checkpoint:
    """The checkpoint in *data* (a note) of the ledger *origin*, once the signatures of *keys* on it were checked.

    Raises :class:`UnknownSignerError` where none of *keys* signed it, and :class:`NoteError` for what is not a
    checkpoint of *origin*.
    """
    note = parse_note(data)
    verify_note(note, keys)
    checkpoint = parse_checkpoint(note)
    if checkpoint.origin != origin:
        raise CheckpointError(f"the checkpoint belongs to the ledger {checkpoint.origin[:80]!r}, not to {origin!r}")
    return checkpoint
