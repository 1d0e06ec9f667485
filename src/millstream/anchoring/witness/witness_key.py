"""The key of a witness, and its file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from millstream.anchoring.errors import LedgerKeyError, NoteError
from millstream.anchoring.transparency.checkpoint import check_origin
from millstream.anchoring.transparency.keys import require_private_mode
from millstream.anchoring.transparency.signed_note import (
    COSIGNATURE,
    NoteKey,
    NoteSignature,
    cosigned_message,
    parse_private_key,
)
from millstream.core.durable import sync_folder

_MAX_FILE_BYTES = 4096


class WitnessKey(NoteKey, frozen=True, dict=True):
    """The private key of a witness (type 0x04)."""

    kind = COSIGNATURE

    def cosign(self, text: str, seconds: int) -> NoteSignature:
        """The cosignature of the checkpoint *text* at the time *seconds* (since the epoch, UTC)."""
        value = seconds.to_bytes(8) + self.private.sign(cosigned_message(text, seconds))
        return NoteSignature(self.name, self.verifier_key.key_id, value)


def create_key_file(path: Path, name: str | None = None) -> WitnessKey:
    """Create the key of a witness in the new file *path* (mode 0600); *name* is random by default.

    Raises :class:`LedgerKeyError` if the file exists or cannot be written, :class:`CheckpointError` for an invalid
    name.
    """
    key = WitnessKey(
        check_origin(name or f"millstream.invalid/{secrets.token_hex(8)}/witness"), secrets.token_bytes(32)
    )
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(key.encode().encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        sync_folder(path.parent)
    except FileExistsError as error:
        raise LedgerKeyError(f"{path} already exists, and a key is never overwritten: choose another file") from error
    except OSError as error:
        raise LedgerKeyError(f"cannot write the key of the witness to {path}: {error.strerror}") from error
    return key


def read_key_file(path: Path) -> WitnessKey:
    """The key in the file *path*; a key of an Ed25519 signer (type 0x01) is used as the key of a witness.

    Raises :class:`LedgerKeyError`.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise LedgerKeyError(f"cannot read the key of the witness from {path}: {error.strerror}") from error
    require_private_mode(path, mode)
    try:
        name, _, seed = parse_private_key(data.decode("utf-8", "replace").strip())
    except NoteError as error:
        raise LedgerKeyError(f"{path} is not the key file of a witness: {error}") from None
    return WitnessKey(name, seed)
