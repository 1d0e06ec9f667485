"""The least that the promises of a registry cost for an operation over HTTP, with uvicorn, libsecp256k1 and SQLite.

An operation of Sidetree v1.0 is taken only if size, members, patches, hashes and signature are valid, and its key is
the one to which the DID is committed now and never was before. A known one is not stored again, however its signature
is written. It is durable before the answer, in one transaction with those that arrive meanwhile, and is found later by
its id and its DID. The last operation on a DID is its state: nothing is anchored, observed or resolved, and a create is
not answered by a document. Clients and waiting operations are not limited; JSON that readers may take differently is
refused unseen. Run in ``benchmarks/``: ``python -m millstream_peers.registry_floor DATABASE``; ``GET /ID`` finds."""

from __future__ import annotations

import asyncio
import binascii
import re
import socket
import sqlite3
import sys
from hashlib import sha256
from typing import Annotated, Any, Literal

import coincurve
import uvicorn
from coincurve.ecdsa import GLOBAL_CONTEXT, deserialize_compact, lib  # type: ignore[attr-defined]
from msgspec import UNSET, Meta, Raw, UnsetType, defstruct, field, json, to_builtins

from millstream.core.canonical import canonical_json

MAX_OPERATION, MAX_DELTA = 10_000, 1_000  # bytes
_TABLE = """PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE IF NOT EXISTS operations (seq INTEGER
PRIMARY KEY, id TEXT UNIQUE, suffix TEXT, opens TEXT, next_update TEXT, next_recovery TEXT, request BLOB);
CREATE INDEX IF NOT EXISTS of_did ON operations (suffix, seq)"""
_STATE = """SELECT next_update, next_recovery, EXISTS (SELECT 1 FROM operations WHERE suffix = ?1 AND opens IN (?2, ?3))
FROM operations WHERE suffix = ?1 ORDER BY seq DESC LIMIT 1"""
_INSERT = "INSERT INTO operations VALUES (NULL, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
_FIND = "SELECT id, suffix, request FROM operations WHERE id = ?1 OR suffix = ?1 ORDER BY seq"
_sorted = json.Encoder(order="sorted").encode
_FROM_URL, _TO_URL = bytes.maketrans(b"-_+/=", b"+/!!!"), bytes.maketrans(b"+/", b"-_")
_NUMBER, _ODD = re.compile(rb"[:,\[]-?[0-9]"), (b"\\u", b"null", b"__proto__", b'"toJSON"')


def _struct(*fields: Any, **options: Any) -> Any:
    return defstruct("Object", fields, forbid_unknown_fields=True, rename="camel", gc=False, **options)


_list: Any = list.__class_getitem__
_HASH = Annotated[str, Meta(pattern=r"^Ei[A-D][A-Za-z0-9_-]{43}\Z")]
_ID, _32_BYTES = (Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]{{{size}}}\Z")] for size in ("1,50", "43"))
_URI = Annotated[str, Meta(pattern=r"(?a)^[A-Za-z][A-Za-z0-9+.-]*:([\w.~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*\Z")]
_USE = Literal["authentication", "assertionMethod", "keyAgreement", "capabilityInvocation", "capabilityDelegation"]
_uses, _jwk = ("purposes", _list(_USE) | UnsetType, UNSET), ("public_key_jwk", dict[str, Any])
_service = (("type", Annotated[str, Meta(max_length=30)]), ("service_endpoint", _URI | dict[str, Any]))
_keys = ("public_keys", _list(_struct(("id", _ID), ("type", str), _jwk, _uses)))
_services, _ids = ("services", _list(_struct(("id", _ID), *_service))), ("ids", _list(_ID))
_document = ("document", _struct(*((name, kind | UnsetType, UNSET) for name, kind in (_keys, _services))))
_PATCHES = {"add-public-keys": _keys, "remove-public-keys": _ids, "add-services": _services, "remove-services": _ids}
_add, *_others = (_struct(f, tag_field="action", tag=a) for a, f in (_PATCHES | {"replace": _document}).items())
_patches = ("patches", _list(_add | _others[0] | _others[1] | _others[2] | _others[3]))
_next_update, _next_recovery = ("update_commitment", _HASH), ("recovery_commitment", _HASH)
_delta, _delta_hash = ("delta", _struct(_patches, _next_update)), ("delta_hash", _HASH)
_type = ("type", Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,4}\Z")] | UnsetType, UNSET)
_Create = _struct(("suffix_data", _struct(_delta_hash, _next_recovery, _type)), _delta, tag="create")
_signed = (("did_suffix", _HASH), ("reveal_value", _HASH), ("signed_data", str))
_Update, _Recover = (_struct(*_signed, _delta, tag=kind) for kind in ("update", "recover"))
_Deactivate = _struct(*_signed, tag="deactivate")
_request = json.Decoder(_Create | _Update | _Recover | _Deactivate).decode
_header = json.Decoder(_struct(("alg", Literal["ES256K"]))).decode
_KEY = _struct(("crv", Literal["secp256k1"]), ("kty", Literal["EC"]), ("x", _32_BYTES), ("y", _32_BYTES))
_update_key, _recovery_key = (("key", _KEY, field(name=name)) for name in ("updateKey", "recoveryKey"))
_fields = ((_update_key, _delta_hash), (_recovery_key, _delta_hash, _next_recovery), (_recovery_key, _signed[0]))
_decoders = (json.Decoder(_struct(*fields)).decode for fields in _fields)
_payload = dict(zip((_Update, _Recover, _Deactivate), _decoders, strict=True))


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text.encode().translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True)


def _multihash(data: bytes) -> str:
    return binascii.b2a_base64(b"\x12\x20" + sha256(data).digest(), newline=False).translate(_TO_URL, b"=").decode()


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def _canonical(value: Any) -> bytes:
    data = _sorted(value)
    return data if data.isascii() and not _NUMBER.search(data) else canonical_json(to_builtins(value))


def _check_delta(delta: Any, delta_hash: str) -> None:
    data = _canonical(delta)
    _require(len(data) <= MAX_DELTA and not any(odd in data for odd in _ODD), "a delta has at most 1,000 plain bytes")
    _require(_multihash(data) == delta_hash, "deltaHash is the hash of the delta")
    for content in (getattr(patch, "document", patch) for patch in delta.patches):
        for items in (getattr(content, "public_keys", None) or (), getattr(content, "services", None) or ()):
            named = [[item.id for item in items], *(getattr(item, "purposes", None) or () for item in items)]
            _require(all(len(set(names)) == len(names) for names in named), "ids and purposes are named once")


def parse(body: bytes) -> tuple[Any, ...]:
    """The row of the operation in *body*. Raises :class:`ValueError` if a rule is broken."""
    _require(len(body) <= MAX_OPERATION, "an operation has at most 10,000 bytes")
    request: Any = _request(body)
    delta = getattr(request, "delta", None)
    update = delta and delta.update_commitment
    if type(request) is _Create:
        suffix, recovery = _multihash(_canonical(request.suffix_data)), request.suffix_data.recovery_commitment
        _check_delta(delta, request.suffix_data.delta_hash)
        _require(update != recovery, "the two commitments differ")
        return suffix, suffix, None, update, recovery, body
    message, _, signature = request.signed_data.rpartition(".")
    header, signed = map(_bytes, message.split("."))
    _require(_header(header) and not any(odd in signed for odd in _ODD), "signed data are plain")
    payload: Any = _payload[type(request)](signed)
    recovery, suffix = getattr(payload, "recovery_commitment", None), getattr(payload, "did_suffix", request.did_suffix)
    key = _sorted(payload.key)
    opens = _multihash(sha256(key).digest())
    if delta is not None:
        _check_delta(delta, payload.delta_hash)
    _require(
        _multihash(key) == request.reveal_value and suffix == request.did_suffix, "key and DID are the signed ones"
    )
    _require(opens not in (update, recovery) and (update or "") != recovery, "the next commitments are new and differ")
    public = coincurve.PublicKey(b"\x04" + _bytes(payload.key.x) + _bytes(payload.key.y)).public_key
    compact, context = deserialize_compact(_bytes(signature)), GLOBAL_CONTEXT.ctx
    lib.secp256k1_ecdsa_signature_normalize(context, compact, compact)
    _require(lib.secp256k1_ecdsa_verify(context, compact, sha256(message.encode()).digest(), public), "the key signed")
    return _multihash(f"{suffix}.{message}".encode()), suffix, opens, update, recovery, body


class Floor:
    """The application: one table in the file *path*."""

    def __init__(self, path: str) -> None:
        self._database, self._reader = (sqlite3.connect(path, 5, 0, None, False) for _ in range(2))
        self._database.executescript(_TABLE)
        self._waiting: list[tuple[Any, asyncio.Future[str]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take the operation in the body, or find operations."""
        body, more = b"", True
        while more and len(body) <= MAX_OPERATION:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            status, data = 200, json.encode(await self._take(body) if body else self.find(scope["path"][1:]))
        except (ValueError, RecursionError) as error:
            status, data = 400, json.encode({"message": str(error)})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    def find(self, name: str) -> Any:
        """The operation whose id is *name*, or those on the suffix *name*, in the order of acceptance."""
        return [(key, suffix, Raw(body)) for key, suffix, body in self._reader.execute(_FIND, (name,))]

    async def _take(self, body: bytes) -> Any:
        self._waiting.append((row := parse(body), future := asyncio.get_running_loop().create_future()))
        self._task = self._task or asyncio.create_task(self._drain())
        _require(not (refusal := await future), refusal)
        return {"id": row[0], "state": "accepted"}

    async def _drain(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                refusals = await asyncio.to_thread(self.commit, [row for row, _ in group])
            except sqlite3.Error as error:  # nothing of the group is stored
                refusals = [str(error)] * len(group)
            for (_, future), refusal in zip(group, refusals, strict=True):
                future.set_result(refusal)
        self._task = None

    def commit(self, rows: list[tuple[Any, ...]]) -> list[str]:
        """Store *rows*, which are durable then; for each why it is refused, empty if it is not."""
        with self._database:  # takes all back where it fails
            self._database.execute("BEGIN IMMEDIATE")
            return [self._refusal(*row) for row in rows]

    def _refusal(self, name: str, suffix: str, *row: Any) -> str:
        opens, update, recovery, body = row
        if opens is not None:
            state = self._database.execute(_STATE, (suffix, update, recovery)).fetchone() or (None, None, 0)
            recovers = update is None or recovery is not None
            if state[recovers] != opens or state[2]:
                known = self._database.execute("SELECT 1 FROM operations WHERE id = ?", (name,)).fetchone()
                return "" if known else "the DID is not committed to this key, or was to the next one"
            recovery = recovery if recovers else state[1]
        self._database.execute(_INSERT, (name, suffix, opens, update, recovery, body))
        return ""


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"serving http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    options: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False, "lifespan": "off"}
    uvicorn.Server(uvicorn.Config(Floor(sys.argv[1]), http="httptools", loop="uvloop", **options)).run([listener])
