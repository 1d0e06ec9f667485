"""The keys that sign the heads of a ledger: one file a ledger, for its owner alone.

The file is described in ``docs/formats/checkpoint.md``; docs/how-to/ledger-keys.md says how keys are kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from millstream.anchoring.errors import LedgerError, LedgerKeyError, NoteError
from millstream.anchoring.transparency.checkpoint import Checkpoint, check_origin, read_checkpoint
from millstream.anchoring.transparency.signed_note import (
    SigningKey,
    VerifierKey,
    encode_note,
    encode_signing_key,
    parse_note,
    parse_signing_key,
    parse_verifier_key,
    sign_note,
)
from millstream.core.clock import Clock
from millstream.core.durable import file_lock, replacing
from millstream.core.private_files import make_private_file, make_private_folder

MAX_KEY_FILE_BYTES = 64 << 10
"""The most bytes of a key file."""


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A private key as the file holds it; it signs until ``until`` (microseconds since the epoch, UTC), if set."""

    private_key: str
    until: int | None = None

    def __repr__(self) -> str:
        return f"StoredKey(until={self.until})"  # without the key, wherever it is printed


class StoredKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key file: ``origin`` names the ledger, ``keys`` sign (the newest first), ``retired`` are verifier keys."""

    origin: str
    keys: tuple[StoredKey, ...]
    retired: tuple[str, ...] = ()


class LedgerKeys:
    """The keys of the ledger *ledger* (anchors, reports, registry), in *folder*. Safe between threads and processes."""

    def __init__(self, folder: Path, ledger: str, clock: Clock) -> None:
        self.path = folder / f"{ledger}.json"
        self._ledger = ledger
        self._clock = clock

    @property
    def exists(self) -> bool:
        """Whether there is a key."""
        return self.path.exists()

    def create(self, origin: str | None = None, *, replaces: Sequence[VerifierKey] = ()) -> VerifierKey:
        """Make a key for the ledger named *origin*; without one a name with a random part is made.

        *replaces* are the verifier keys of lost keys: what they signed is still accepted, and their name is the origin.
        Raises :class:`LedgerKeyError` where there is a key, :class:`CheckpointError` for what cannot be an origin.
        """
        given = {each.name for each in replaces} | ({origin} if origin else set())
        if len(given) > 1:
            raise LedgerKeyError(f"one ledger has one origin, but the keys have {', '.join(sorted(given))}")
        name = check_origin(next(iter(given), f"millstream.invalid/{secrets.token_hex(8)}/{self._ledger}"))
        with self._writing():
            if self.exists:
                raise LedgerKeyError(
                    f"the ledger {self._ledger} has a key already, with the origin {self._load().origin}: to replace "
                    f"the key, use `millstream anchor key rotate --ledger {self._ledger}`"
                )
            key = _new_key(name)
            self._write(StoredKeys(name, (StoredKey(encode_signing_key(key)),), tuple(map(str, replaces))))
        return key.verifier_key

    def rotate(self, overlap: int) -> VerifierKey:
        """Make a new key of the same origin; the one before it signs too, for *overlap* more microseconds.

        Raises :class:`LedgerKeyError` where there is no key.
        """
        with self._writing():
            stored, until = self._load(), self._clock.now() + overlap
            before = tuple(
                StoredKey(each.private_key, until if each.until is None else min(each.until, until))
                for each in stored.keys
            )
            key = _new_key(stored.origin)
            self._write(StoredKeys(stored.origin, (StoredKey(encode_signing_key(key)), *before), stored.retired))
        return key.verifier_key

    def signing(self) -> Sequence[SigningKey]:
        """The keys that sign now, the newest first; the first key is made where there is none.

        Raises :class:`LedgerKeyError` where the file cannot be read.
        """
        if not self.exists:
            with contextlib.suppress(LedgerKeyError):  # another process has just made it
                self.create()
        stored = self._load()
        if self._expired(stored):
            with contextlib.suppress(OSError), self._writing():  # a folder of secrets may be read-only
                self._write(self._load())
        return [key for key, _ in self._signing(stored)]

    def origin(self) -> str:
        """The name of the ledger in its checkpoints. Raises :class:`LedgerKeyError` where there is no key."""
        return self._load().origin

    def signing_until(self) -> Sequence[tuple[VerifierKey, int | None]]:
        """The verifier keys of the keys of now, the newest first, and until when each signs (microseconds, UTC)."""
        return [(key.verifier_key, until) for key, until in self._signing(self._load())]

    def retired(self) -> Sequence[VerifierKey]:
        """The verifier keys of keys that do not sign any more; they verify what was signed before."""
        stored = self._load()
        expired = [parse_signing_key(each.private_key).verifier_key for each in self._expired(stored)]
        return [*expired, *map(parse_verifier_key, stored.retired)]

    def _signing(self, stored: StoredKeys) -> list[tuple[SigningKey, int | None]]:
        expired = self._expired(stored)
        return [(parse_signing_key(each.private_key), each.until) for each in stored.keys if each not in expired]

    def _expired(self, stored: StoredKeys) -> list[StoredKey]:
        now = self._clock.now()
        return [each for each in stored.keys if each.until is not None and each.until <= now]

    def _load(self) -> StoredKeys:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(MAX_KEY_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise LedgerKeyError(
                f"the ledger {self._ledger} has no key in {self.path.parent}: make one with "
                f"`millstream anchor key create --ledger {self._ledger}`"
            ) from error
        except OSError as error:
            raise LedgerKeyError(
                f"cannot read the key of the ledger {self._ledger} from {self.path}: {error.strerror}"
            ) from error
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise LedgerKeyError(f"other accounts of the machine can read {self.path}: run chmod 600 {self.path}")
        return self._parsed(data)

    def _parsed(self, data: bytes) -> StoredKeys:
        try:
            stored = msgspec.json.decode(data[:MAX_KEY_FILE_BYTES], type=StoredKeys)
            keys = [parse_signing_key(each.private_key) for each in stored.keys]
            names = {key.name for key in keys} | {parse_verifier_key(each).name for each in stored.retired}
        except (msgspec.DecodeError, UnicodeDecodeError, NoteError) as error:
            raise LedgerKeyError(
                f"the key file {self.path} is damaged ({error}): restore it from a backup"
            ) from None  # not with what the file holds
        if not keys or stored.keys[0].until is not None or names != {stored.origin}:
            raise LedgerKeyError(
                f"the key file {self.path} does not have a key of its origin: restore it from a backup"
            )
        return stored

    def _write(self, stored: StoredKeys) -> None:
        """Write *stored*; of keys that have expired only the public half is kept."""
        expired = self._expired(stored)
        gone = [str(parse_signing_key(each.private_key).verifier_key) for each in expired]
        kept = tuple(each for each in stored.keys if each not in expired)
        with replacing(self.path, mode=0o600) as file:
            data = StoredKeys(stored.origin, kept, (*gone, *stored.retired))
            file.write(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        make_private_folder(self.path.parent)
        lock = self.path.parent / f".{self._ledger}.lock"
        make_private_file(lock)
        with file_lock(lock):
            yield


class LedgerSigner:
    """Signs the heads of a ledger with the keys that its file has at that moment, and reads what they signed."""

    def __init__(self, keys: LedgerKeys) -> None:
        self._keys = keys

    @property
    def origin(self) -> str:
        """The first line of every checkpoint of the ledger."""
        return self._keys.signing()[0].name

    def sign(self, size: int, root: bytes) -> bytes:
        """The checkpoint of the tree of *size* entries with *root* (32 bytes), signed with each key that signs now."""
        keys = self._keys.signing()
        return encode_note(sign_note(Checkpoint(keys[0].name, size, root).text, keys))

    def read(self, checkpoint: bytes) -> Checkpoint:
        """What a checkpoint of this ledger says, once its signature was checked. Raises :class:`LedgerError`."""
        known = [*(key.verifier_key for key in self._keys.signing()), *self._keys.retired()]
        try:
            return read_checkpoint(checkpoint, known[0].name, known)
        except NoteError as error:
            raise LedgerError(
                f"the checkpoint is not one of this ledger: {error}. Where the key was lost, name its verifier key "
                "when you make the new one (millstream anchor key create --replaces KEY)"
            ) from error

    def is_current(self, checkpoint: bytes) -> bool:
        """Whether *checkpoint* has signatures of all keys that sign now."""
        signed = {(each.name, each.key_id) for each in parse_note(checkpoint).signatures}
        return {(key.name, key.verifier_key.key_id) for key in self._keys.signing()} <= signed


def _new_key(origin: str) -> SigningKey:
    return SigningKey(origin, secrets.token_bytes(32))
