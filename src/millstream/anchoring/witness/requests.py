"""The body of ``add-checkpoint``: the size that the witness knows, a consistency path, and the new checkpoint."""

from __future__ import annotations

import re

import msgspec

from millstream.anchoring.errors import NoteError
from millstream.anchoring.transparency.checkpoint import MAX_TREE_SIZE
from millstream.anchoring.transparency.signed_note import MAX_NOTE_BYTES, decode_base64, encode_base64

MAX_CONSISTENCY_HASHES = 63
MAX_REQUEST_BYTES = MAX_NOTE_BYTES + 4096
"""The largest body that is read: the checkpoint, and the lines before it."""

SIZE_MEDIA = "text/x.tlog.size"
"""The media type of an answer with status 409 that contains the size that the witness knows."""

_OLD = re.compile(rb"old (0|[1-9][0-9]{0,18})")


class AddCheckpoint(msgspec.Struct, frozen=True):
    """``checkpoint`` (a signed note) extends the tree of ``old`` leaves; ``path`` (hashes of 32 bytes) proves it."""

    old: int
    path: tuple[bytes, ...]
    checkpoint: bytes


def encode_request(request: AddCheckpoint) -> bytes:
    """The body of *request*."""
    lines = [f"old {request.old}", *map(encode_base64, request.path), ""]
    return "".join(f"{line}\n" for line in lines).encode() + request.checkpoint


def parse_request(body: bytes) -> AddCheckpoint:
    """The request in *body*; the checkpoint is not parsed. Raises :class:`NoteError`."""
    if len(body) > MAX_REQUEST_BYTES:
        raise NoteError(f"the request has more than {MAX_REQUEST_BYTES:,} bytes, the limit")
    head, blank, checkpoint = body.partition(b"\n\n")
    first, *hashes = head.split(b"\n")
    old = _OLD.fullmatch(first)
    if old is None or not blank or int(old[1]) > MAX_TREE_SIZE:
        raise NoteError(
            "invalid request: expected the line 'old SIZE', one line for each consistency hash, an empty line and a "
            "checkpoint"
        )
    if len(hashes) > MAX_CONSISTENCY_HASHES:
        raise NoteError(f"the request has {len(hashes)} consistency hashes; the limit is {MAX_CONSISTENCY_HASHES}")
    path = tuple(decode_base64(line.decode("latin-1"), "a consistency hash") for line in hashes)
    if any(len(each) != 32 for each in path):
        raise NoteError("invalid request: each consistency hash must have 32 bytes")
    return AddCheckpoint(int(old[1]), path, checkpoint)
