"""Signed notes (c2sp.org/signed-note@v1.0.0): a text and signatures under it, and the keys that make and check them.

Ed25519 signatures (type 0x01) and timestamped Ed25519 cosignatures (type 0x04, c2sp.org/tlog-cosignature@v1.0.1) are
verified; signatures of other keys are carried along and ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

import msgspec

from millstream.anchoring.errors import NoteError, UnknownSignerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519 = 0x01
COSIGNATURE = 0x04
"""The types of keys that are used here; the number stands in the key, before the 32 bytes of the public key."""

MAX_SIGNATURES = 64
"""The most signatures of a note that are read; the specification asks for 16 at least."""

MAX_NOTE_BYTES = 512 << 10
"""The most bytes of a note that are read: room for ``MAX_SIGNATURES`` signatures of post-quantum keys."""

_MAX_TIME = 2**63 - 1
_MARK = "\u2014 "
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_KEY_ID = re.compile(r"[0-9a-f]{8}")
_LOOKS_LIKE_KEY = re.compile(r"\s*[^+\s]+\+[0-9a-fA-F]{8}\+")
_PRIVATE = "PRIVATE+KEY+"

_FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})
"""The y coordinates of the eight points of edwards25519 (RFC 8032, section 5.1) whose order divides the cofactor 8.

Under such a public key the same signature holds for many texts, so it vouches for nothing.
"""


class NoteSignature(msgspec.Struct, frozen=True):
    """A signature line: the ``name`` of the key, its ``key_id`` (4 bytes), and the bytes of the signature."""

    name: str
    key_id: bytes
    value: bytes


class SignedNote(msgspec.Struct, frozen=True):
    """A ``text``, which ends in a newline, and its signatures in the order of their lines."""

    text: str
    signatures: tuple[NoteSignature, ...]


class VerifierKey(msgspec.Struct, frozen=True, dict=True):
    """A public key (32 bytes) of type ``kind`` (:data:`ED25519` or :data:`COSIGNATURE`), known as ``name``."""

    name: str
    kind: int
    public: bytes

    @cached_property
    def key_id(self) -> bytes:
        """The 4 bytes that name the key in a signature line."""
        return sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        """The key as it is published: ``name+hex(key id)+base64(type and public key)``."""
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.public)}"


class VerifiedSignature(msgspec.Struct, frozen=True):
    """A signature that holds; ``time`` is when a cosignature was made (seconds since the epoch, UTC), else None."""

    key: VerifierKey
    time: int | None = None


class NoteKey(msgspec.Struct, frozen=True, dict=True):
    """A private Ed25519 key of the type ``kind``: the ``name`` it signs with, and its ``seed`` (32 bytes)."""

    kind: ClassVar[int]
    name: str
    seed: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"  # without the seed, wherever it is printed

    @cached_property
    def verifier_key(self) -> VerifierKey:
        """The public half."""
        return VerifierKey(self.name, self.kind, self.private.public_key().public_bytes_raw())

    def encode(self) -> str:
        """One line as Go's ``sumdb/note`` writes it: ``PRIVATE+KEY+name+hex(key id)+base64(type and seed)``."""
        return f"{_PRIVATE}{self.name}+{self.verifier_key.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.seed)}"

    @cached_property
    def private(self) -> Ed25519PrivateKey:
        """The key itself."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed)


class SigningKey(NoteKey, frozen=True, dict=True):
    """The private key of a ledger (type 0x01)."""

    kind = ED25519

    def sign(self, text: str) -> NoteSignature:
        """The signature over *text*, which ends in a newline."""
        return NoteSignature(self.name, self.verifier_key.key_id, self.private.sign(text.encode()))


def parse_signing_key(text: str) -> SigningKey:
    """The private key in *text*, as :meth:`NoteKey.encode` writes it. Raises :class:`NoteError` without the key."""
    name, kind, seed = parse_private_key(text)
    if kind != ED25519:
        raise NoteError(f"the private key {name!r} is the key of a witness: give the key of a ledger (type 0x01)")
    return SigningKey(name, seed)


def parse_private_key(text: str) -> tuple[str, int, bytes]:
    """Name, type and seed (32 bytes) of the private key in *text*. Raises :class:`NoteError` without the key."""
    if not text.startswith(_PRIVATE):
        raise NoteError("invalid private key: expected the form PRIVATE+KEY+<name>+<key id>+<key>")
    name, kind, seed, key_id = _split_key(text.removeprefix(_PRIVATE), "the private key")
    if _key_of(name, kind, seed).key_id != key_id:
        raise NoteError(
            f"the private key {name!r} is damaged: its key id does not match; restore the key from a backup"
        )
    return name, kind, seed


def _key_of(name: str, kind: int, seed: bytes) -> VerifierKey:
    return VerifierKey(name, kind, SigningKey(name, seed).verifier_key.public)


def parse_verifier_key(text: str) -> VerifierKey:
    """The verifier key in *text*. Raises :class:`NoteError`, which never shows what may be a private key."""
    if _PRIVATE in text.upper():
        raise NoteError(
            "expected a verifier key, found a private key: give the line that `millstream anchor key show` prints. If "
            "others have seen the private key, replace the key with `millstream anchor key rotate`"
        )
    begin = text if not looks_like_key(text) else "+".join(text.split("+", 2)[:2])
    what = f"the verifier key {begin[:80]!r}"
    name, kind, public, key_id = _split_key(text, what)
    key = VerifierKey(name, kind, public)
    if key.key_id != key_id:
        raise NoteError(f"{what} is damaged: its key id does not match; copy the key again from its source")
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _FIELD or y in _SMALL_ORDER:
        raise NoteError(f"{what} is not safe, because anyone can sign for it: request the correct key from its owner")
    return key


def parse_ledger_key(text: str) -> VerifierKey:
    """The verifier key of a ledger in *text*: one of type 0x01. Raises :class:`NoteError`."""
    key = parse_verifier_key(text)
    if key.kind != ED25519:
        raise NoteError(
            f"the verifier key {key.name}+{key.key_id.hex()} is the key of a witness (type 0x{key.kind:02x}): give the "
            "key of the ledger (type 0x01), and name witnesses in a policy"
        )
    return key


def looks_like_key(text: str) -> bool:
    """Whether *text* begins as a key does, or as a private one, so that it must not be taken for a file's name."""
    return _PRIVATE in text.upper() or _LOOKS_LIKE_KEY.match(text) is not None


def _split_key(text: str, what: str) -> tuple[str, int, bytes, bytes]:
    """Name, type, 32 bytes of key and key id of a key."""
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    if not is_key_name(name) or not _KEY_ID.fullmatch(key_id):
        raise NoteError(f"{what} is invalid: expected <name>+<key id in hex>+<key in base64>")
    data = decode_base64(encoded, what)
    kind = data[0] if data else 0
    if kind not in (ED25519, COSIGNATURE):
        raise NoteError(f"{what} has type 0x{kind:02x}: use an Ed25519 key (0x01) or a cosignature key (0x04)")
    if len(data) != 33:
        raise NoteError(f"{what} has a key of {len(data) - 1} bytes, but an Ed25519 key has 32")
    return name, kind, data[1:], bytes.fromhex(key_id)


def is_key_name(name: str) -> bool:
    """Whether *name* can be the name of a key: not empty, and without spaces, control characters and ``+``."""
    return bool(name) and "+" not in name and not any(map(str.isspace, name)) and not _CONTROL.search(name)


def parse_note(data: bytes) -> SignedNote:
    """The signed note in *data*, its form checked and no signature. Raises :class:`NoteError`."""
    if len(data) > MAX_NOTE_BYTES:
        raise NoteError(f"the signed note has more than {MAX_NOTE_BYTES:,} bytes, the limit")
    try:
        note = data.decode()
    except UnicodeDecodeError as error:
        raise NoteError(f"the signed note is not UTF-8: {error}") from error
    if _CONTROL.search(note):
        raise NoteError("the signed note contains a control character other than a newline")
    body, blank, lines = note.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise NoteError(
            "the signed note has no empty line followed by signature lines: it is truncated, or not a signed note"
        )
    rows = lines[:-1].split("\n")
    if len(rows) > MAX_SIGNATURES:
        raise NoteError(f"the signed note has {len(rows)} signatures; the limit is {MAX_SIGNATURES}")
    return SignedNote(body + "\n", tuple(map(_parse_signature, rows)))


def _parse_signature(line: str) -> NoteSignature:
    name, _, encoded = line.removeprefix(_MARK).partition(" ")
    if not line.startswith(_MARK) or not is_key_name(name):
        raise NoteError(f"invalid signature line {line[:80]!r}: expected '\u2014 <key name> <base64>'")
    data = decode_base64(encoded, f"the signature of {name[:80]!r}")
    if len(data) < 5:
        raise NoteError(f"the signature of {name[:80]!r} has {len(data)} bytes, but needs at least 5")
    return NoteSignature(name, data[:4], data[4:])


def encode_note(note: SignedNote) -> bytes:
    """The bytes of *note*."""
    return f"{note.text}\n{encode_signatures(note.signatures)}".encode()


def encode_signatures(signatures: Iterable[NoteSignature]) -> str:
    """The signature lines of a note, each with its newline."""
    return "".join(f"{_MARK}{each.name} {encode_base64(each.key_id + each.value)}\n" for each in signatures)


def sign_note(text: str, keys: Iterable[SigningKey]) -> SignedNote:
    """*text*, which ends in a newline, signed with each of *keys*."""
    return SignedNote(text, tuple(key.sign(text) for key in keys))


def verify_note(note: SignedNote, keys: Sequence[VerifierKey]) -> list[VerifiedSignature]:
    """The signatures of *note* that *keys* made; there is one at least. Signatures of other keys are ignored.

    Raises :class:`UnknownSignerError` where none of *keys* signed it, and :class:`NoteError` where the signature of one
    of them does not hold.
    """
    known = {(key.name, key.key_id): key for key in keys}
    verified = [
        _verify_signature(note.text, signature, known[signature.name, signature.key_id])
        for signature in note.signatures
        if (signature.name, signature.key_id) in known
    ]
    if not verified:
        signers = ", ".join(sorted({f"{each.name}+{each.key_id.hex()}" for each in note.signatures})[:5])
        one_of = "a trusted key:" if len(keys) > 1 else "the trusted key"
        wanted = ", ".join(f"{key.name}+{key.key_id.hex()}" for key in keys[:5])
        raise UnknownSignerError(f"the note is signed by {signers}, but not by {one_of} {wanted}")
    return verified


def _verify_signature(text: str, signature: NoteSignature, key: VerifierKey) -> VerifiedSignature:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    value, message, time = signature.value, text.encode(), None
    if key.kind == COSIGNATURE:
        time, value = int.from_bytes(value[:8]), value[8:]
        message = cosigned_message(text, time)
        if time > _MAX_TIME:
            raise NoteError(f"the cosignature of {key.name}+{key.key_id.hex()} has a time above 2^63 - 1 seconds")
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(value, message)
    except (InvalidSignature, ValueError) as error:
        raise NoteError(f"the signature of {key.name}+{key.key_id.hex()} does not match the signed text") from error
    return VerifiedSignature(key, time)


def cosigned_message(text: str, time: int) -> bytes:
    """What a cosignature at *time* (seconds since the epoch, UTC) of the checkpoint *text* signs."""
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def encode_base64(data: bytes) -> str:
    """*data* in standard base64 with padding."""
    return base64.b64encode(data).decode()


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of *text*, which must be the one spelling in base64 that they have. Raises :class:`NoteError`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError(f"{what} is not valid base64") from error
    if encode_base64(data) != text:
        raise NoteError(f"{what} is not base64 in its canonical form")
    return data
