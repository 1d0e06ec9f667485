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

from millstream.anchoring.errors import (
    RESTORE_DATABASE,
    LedgerError,
    LedgerKeyError,
    NoteError,
    UnknownSignerError,
)
from millstream.anchoring.transparency.checkpoint import Checkpoint, check_origin, read_checkpoint
from millstream.anchoring.transparency.signed_note import (
    SigningKey,
    VerifierKey,
    encode_note,
    parse_note,
    parse_signing_key,
    parse_verifier_key,
    sign_note,
)
from millstream.anchoring.transparency.signer import TreeHead
from millstream.core.clock import Clock
from millstream.core.decoding import prepared
from millstream.core.durable import file_lock, replacing
from millstream.core.private_files import make_private_file, make_private_folder

MAX_KEY_FILE_BYTES = 64 << 10
"""The most bytes of a key file."""

MAX_SIGNING_KEYS = 8
"""The most keys that sign at the same time: a checkpoint has a signature of each."""


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


class _KeyFile(msgspec.Struct, frozen=True):
    """A key file as it was read: what identified it then, and its keys in their order."""

    identity: tuple[int, int, int]
    stored: StoredKeys
    keys: tuple[SigningKey, ...]
    retired: tuple[VerifierKey, ...]


class LedgerKeys:
    """The keys of the ledger *ledger* (anchors, reports, registry), in *folder*. Safe between threads and processes."""

    def __init__(self, folder: Path, ledger: str, clock: Clock) -> None:
        self.path = folder / f"{ledger}.json"
        self.ledger = ledger
        self._clock = clock
        self._read: _KeyFile | None = None

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
            names = ", ".join(sorted(given))
            raise LedgerKeyError(
                f"a ledger has only one origin, but --origin and --replaces name {names}: give --replaces only keys "
                "of one origin, and either omit --origin or give that origin"
            )
        name = check_origin(next(iter(given), f"millstream.invalid/{secrets.token_hex(8)}/{self.ledger}"))
        with self._writing():
            if self.exists:
                raise LedgerKeyError(
                    f"the ledger {self.ledger} already has a key, with the origin {self.origin()}: to replace "
                    f"the key, use `millstream anchor key rotate --ledger {self.ledger}`"
                )
            key = _new_key(name)
            self._write(StoredKeys(name, (StoredKey(key.encode()),), tuple(map(str, replaces))))
        return key.verifier_key

    def rotate(self, overlap: int) -> VerifierKey:
        """Make a new key of the same origin; the one before it signs too, for *overlap* more microseconds.

        Raises :class:`LedgerKeyError` where there is no key, or where :data:`MAX_SIGNING_KEYS` would still sign.
        """
        with self._writing():
            stored, until = self._load().stored, self._clock.now() + overlap
            if overlap > 0 and sum(not self._is_over(each) for each in stored.keys) >= MAX_SIGNING_KEYS:
                raise LedgerKeyError(
                    f"the ledger {self.ledger} already has {MAX_SIGNING_KEYS} signing keys: wait until the overlap of "
                    f"an earlier rotation ends (`millstream anchor key show --ledger {self.ledger}` prints its end), "
                    "or rotate with --overlap 0s, which ends the overlap of all earlier keys at once"
                )
            before = tuple(
                StoredKey(each.private_key, until if each.until is None else min(each.until, until))
                for each in stored.keys
            )
            key = _new_key(stored.origin)
            self._write(StoredKeys(stored.origin, (StoredKey(key.encode()), *before), stored.retired))
        return key.verifier_key

    def signing(self, *, create: bool = True) -> Sequence[SigningKey]:
        """The keys that sign now, the newest first; where there is none it is made with *create*, else there are none.

        Raises :class:`LedgerKeyError` where the file cannot be read.
        """
        file = self._load_existing()
        if file is None and not create:
            return []
        if file is None:
            try:
                self.create()
            except LedgerKeyError:
                if not self.exists:  # else another process has just made it
                    raise
            file = self._load()
        keys = [key for key, each in zip(file.keys, file.stored.keys, strict=True) if not self._is_over(each)]
        if len(keys) < len(file.keys):
            with contextlib.suppress(LedgerKeyError), self._writing():  # a folder of secrets may be read-only
                self._write(self._load().stored)
        return keys

    def origin(self) -> str:
        """The name of the ledger in its checkpoints. Raises :class:`LedgerKeyError` where there is no key."""
        return self._load().stored.origin

    def signing_until(self) -> Sequence[tuple[VerifierKey, int | None]]:
        """The verifier keys of the keys of now, the newest first, and until when each signs (microseconds, UTC)."""
        file = self._load()
        keys = zip(file.keys, file.stored.keys, strict=True)
        return [(key.verifier_key, each.until) for key, each in keys if not self._is_over(each)]

    def retired(self) -> Sequence[VerifierKey]:
        """The verifier keys of keys that do not sign any more; they verify what was signed before."""
        file = self._load()
        keys = zip(file.keys, file.stored.keys, strict=True)
        return [*(key.verifier_key for key, each in keys if self._is_over(each)), *file.retired]

    def restore_hint(self) -> str:
        """What to do where the file lacks the key that signed the checkpoints of the ledger."""
        away = "move the present file away and " if self.exists else ""
        return (
            f"Restore that file from a backup. If the key is lost, {away}create a new key with `millstream anchor key "
            f"create --ledger {self.ledger} --replaces KEY`, where KEY is the verifier key of the lost key"
        )

    def _is_over(self, key: StoredKey) -> bool:
        return key.until is not None and key.until <= self._clock.now()

    def _load(self) -> _KeyFile:
        file = self._load_existing()
        if file is None:
            raise LedgerKeyError(
                f"the ledger {self.ledger} has no key in {self.path.parent}: create one with "
                f"`millstream anchor key create --ledger {self.ledger}`"
            )
        return file

    def _load_existing(self) -> _KeyFile | None:
        """The keys of the file, None where there is no file."""
        try:
            if self._read is not None and self._read.identity == _identity(self.path.stat()):
                return self._read
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                identity, mode = _identity(found), found.st_mode
                data = file.read(MAX_KEY_FILE_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LedgerKeyError(
                f"cannot read the key of the ledger {self.ledger} from {self.path}: {error.strerror}"
            ) from error
        require_private_mode(self.path, mode)
        self._read = self._parsed(data, identity)
        return self._read

    def _parsed(self, data: bytes, identity: tuple[int, int, int]) -> _KeyFile:
        try:
            stored = msgspec.json.decode(data[:MAX_KEY_FILE_BYTES], type=prepared(StoredKeys))
            keys = tuple(parse_signing_key(each.private_key) for each in stored.keys)
            retired = tuple(map(parse_verifier_key, stored.retired))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._damaged("the file is not a JSON object with origin, keys and retired") from None
        except NoteError as error:
            raise self._damaged(str(error)) from None
        names = {key.name for key in keys} | {key.name for key in retired}
        if not keys:
            raise self._damaged("the file has no keys")
        if stored.keys[0].until is not None:
            raise self._damaged("the first key has the member 'until', which only replaced keys have")
        if names != {stored.origin}:
            raise self._damaged("the keys do not belong to the origin")
        return _KeyFile(identity, stored, keys, retired)

    def _damaged(self, reason: str) -> LedgerKeyError:
        """Without the text of a JSON error: that quotes the file."""
        return LedgerKeyError(f"the key file {self.path} is damaged ({reason}): restore the file from a backup")

    def _write(self, stored: StoredKeys) -> None:
        """Write *stored*; of keys that are over only the public half is kept. A link is followed."""
        gone = [parse_signing_key(each.private_key).verifier_key for each in stored.keys if self._is_over(each)]
        kept = tuple(each for each in stored.keys if not self._is_over(each))
        written = StoredKeys(stored.origin, kept, (*map(str, gone), *stored.retired))
        data = msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n"
        if len(data) > MAX_KEY_FILE_BYTES:
            raise LedgerKeyError(
                f"the key file {self.path} would have {len(data):,} bytes, but the limit is {MAX_KEY_FILE_BYTES:,}: "
                "remove old verifier keys from its member 'retired'; checkpoints signed with them are then rejected"
            )
        with replacing(self.path.resolve(), mode=0o600) as file:
            file.write(data)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            make_private_folder(self.path.parent)
            lock = self.path.parent / f".{self.ledger}.lock"
            make_private_file(lock)
            with file_lock(lock):
                yield
        except OSError as error:
            raise LedgerKeyError(
                f"cannot write the key of the ledger {self.ledger} to {self.path}: {error.strerror}"
            ) from error


class LedgerSigner:
    """Signs the heads of a ledger with the keys that its file has at that moment, and reads what they signed.

    *origin* is that of earlier checkpoints, if there are any: then no other key is made at first use.
    """

    def __init__(self, keys: LedgerKeys, origin: str | None = None) -> None:
        self._keys = keys
        self._origin = origin

    @property
    def origin(self) -> str:
        """The first line of every checkpoint of the ledger."""
        return self._signing()[0].name

    def sign(self, size: int, root: bytes) -> bytes:
        """The checkpoint of the tree of *size* entries with *root* (32 bytes), signed with each key that signs now."""
        keys = self._signing()
        return encode_note(sign_note(Checkpoint(keys[0].name, size, root).text, keys))

    def read(self, checkpoint: bytes, place: str = "") -> TreeHead:
        """See :meth:`CheckpointSigner.read`."""
        known = [*(key.verifier_key for key in self._signing()), *self._keys.retired()]
        try:
            head = read_checkpoint(checkpoint, known[0].name, known)
        except UnknownSignerError as error:
            other = f". If {place} belongs to another node, correct the setting that names it" if place else ""
            raise LedgerError(
                f"{self._described(place)} is not signed by a key in {self._keys.path}: {error}. "
                f"{self._keys.restore_hint()}{other}"
            ) from error
        except NoteError as error:
            raise LedgerError(
                f"cannot use {self._described(place)}: {error}. The key file is not the cause. {self._remedy(place)}"
            ) from error
        return TreeHead(head.origin, head.size, head.root)

    def _described(self, place: str) -> str:
        where = f"file 'checkpoint' in {place}" if place else "in the node's database"
        return f"the checkpoint of the ledger {self._keys.ledger} ({where})"

    def _remedy(self, place: str) -> str:
        if not place:
            return RESTORE_DATABASE
        return (
            "Restore this file from a backup. If there is no backup, and the node was not restored from an older one, "
            f"delete the file: `millstream anchor checkpoint --ledger {self._keys.ledger}` writes it again"
        )

    def _signing(self) -> Sequence[SigningKey]:
        keys = self._keys.signing(create=self._origin is None)
        if self._origin is not None and (not keys or keys[0].name != self._origin):
            raise LedgerKeyError(
                f"the key of the ledger {self._keys.ledger} with the origin {self._origin} is not in "
                f"{self._keys.path}. {self._keys.restore_hint()}"
            )
        self._origin = keys[0].name
        return keys

    def is_current(self, checkpoint: bytes) -> bool:
        """Whether *checkpoint* has signatures of all keys that sign now."""
        signed = {(each.name, each.key_id) for each in parse_note(checkpoint).signatures}
        return {(key.name, key.verifier_key.key_id) for key in self._signing()} <= signed


def require_private_mode(path: Path, mode: int) -> None:
    """Check that *mode*, that of the key file *path*, keeps other accounts out. Raises :class:`LedgerKeyError`."""
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise LedgerKeyError(f"other accounts of this machine can read or write {path}: run `chmod 600 {path}`")


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _new_key(origin: str) -> SigningKey:
    return SigningKey(origin, secrets.token_bytes(32))
