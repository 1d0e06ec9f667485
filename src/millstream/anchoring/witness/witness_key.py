"""The key of a witness, and its file."""

from __future__ import annotations

import os
import secrets
import stat
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millstream.anchoring.errors import LedgerKeyError, NoteError
from millstream.anchoring.transparency.checkpoint import check_origin
from millstream.anchoring.transparency.signed_note import (
    COSIGNATURE,
    NoteSignature,
    VerifierKey,
    cosigned_message,
    encode_private_key,
    parse_private_key,
)
from millstream.core.durable import sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_FILE_BYTES = 4096


class WitnessKey(msgspec.Struct, frozen=True, dict=True):
    """The private Ed25519 key of the witness *name*; ``seed`` has 32 bytes."""

    name: str
    seed: bytes

    def __repr__(self) -> str:
        return f"WitnessKey(name={self.name!r})"  # without the seed, wherever it is printed

    @cached_property
    def verifier_key(self) -> VerifierKey:
        """The public half (type 0x04)."""
        return VerifierKey(self.name, COSIGNATURE, self._private.public_key().public_bytes_raw())

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def cosign(self, text: str, seconds: int) -> NoteSignature:
        """The cosignature of the checkpoint *text* at the time *seconds* (since the epoch, UTC)."""
        value = seconds.to_bytes(8) + self._private.sign(cosigned_message(text, seconds))
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
            opened.write(encode_private_key(key.name, COSIGNATURE, key.seed).encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        sync_folder(path.parent)
    except FileExistsError as error:
        raise LedgerKeyError(f"{path} exists already, and a key is never overwritten: choose another file") from error
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
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise LedgerKeyError(f"other accounts of the machine can read {path}: run chmod 600 {path}")
    try:
        name, _, seed = parse_private_key(data.decode("utf-8", "replace").strip())
    except NoteError as error:
        raise LedgerKeyError(f"{path} is not the key file of a witness ({error})") from None
    return WitnessKey(name, seed)
