"""What Sidetree's reference implementation takes for a delta, a key, a hash or a signature in the files of others.

A node forks from its network where its reader judges one member otherwise than the others' readers, in either
direction. So these rules are neither stricter nor more lenient than those of the TypeScript implementation
(``@decentralized-identity/sidetree`` 1.0.6), also where the specification says less or more. What a client sends is
judged by :mod:`~millstream.anchoring.sidetree.operations`, which asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from millstream.anchoring.sidetree.encoding import canonical, encode, is_base64url, is_multihash
from millstream.anchoring.sidetree.errors import RequestError, unknown_members
from millstream.anchoring.sidetree.javascript import decode_base64, utf16_length
from millstream.anchoring.sidetree.model import OperationType
from millstream.anchoring.sidetree.patches import (
    MAX_ID_LENGTH,
    MAX_SERVICE_TYPE_LENGTH,
    check_patches,
    check_purposes,
    of_action,
    require_action,
)
from millstream.anchoring.sidetree.profile import (
    ADD_KEYS,
    ADD_SERVICES,
    REMOVE_KEYS,
    REMOVE_SERVICES,
    REPLACE,
    Profile,
)
from millstream.anchoring.sidetree.reference_json import (
    InheritingObject,
    ReferenceJsonError,
    decode_json,
    decode_native,
)
from millstream.anchoring.sidetree.signatures import CompactJws, split_jws
from millstream.anchoring.sidetree.uris import check_uri

Object = Mapping[str, Any]

_SHA2_256: Final = 0x12
_COORDINATE_LENGTH: Final = 43
_FEW: Final = 4
_LONGEST_VARINT: Final = 147  # one more byte would be multiplied by 2^1029, which is infinite in JavaScript

# The member with the key, those with hashes, and how many there are.
_SIGNED: Final[Mapping[OperationType, tuple[str, Sequence[str], int]]] = {
    OperationType.UPDATE: ("updateKey", ("deltaHash",), 2),
    OperationType.RECOVER: ("recoveryKey", ("deltaHash", "recoveryCommitment"), 3),
    OperationType.DEACTIVATE: ("recoveryKey", (), 2),
}


def own_members(value: object, what: str) -> Object:
    """The members that JavaScript counts in *value*: of a list its places, of text its characters, of a number none.

    Look-ups see inherited members too (:class:`~millstream.anchoring.sidetree.reference_json.InheritingObject`). Of a
    list and of text no more than the first few are given: nothing may have as many. Raises :class:`RequestError`
    for null, which has none to count; *what* names the value there.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, list | str):
        return {str(place): item for place, item in enumerate(value[:_FEW])}
    if value is None:
        raise RequestError("reference", f"{what} must be an object, not null")
    return {}


def allow_members(value: object, allowed: Set[str], what: str) -> Object:
    """The members of *value*, which must be among *allowed*, inherited ones too; null has none.

    Raises :class:`RequestError`.
    """
    if type(value) is dict and value.keys() <= allowed:
        return value
    members = own_members(value, what)
    unknown = (members.enumerable() if isinstance(members, InheritingObject) else members.keys()) - allowed
    if unknown and not isinstance(value, dict):
        raise RequestError(
            "reference", f"{what} must be an object, not {'a string' if isinstance(value, str) else 'a list'}"
        )
    if unknown:
        raise RequestError("reference", f"{what} {unknown_members(unknown, allowed)}")
    return members


def check_multihash(value: object, what: str) -> str:
    """*value*, which must be an encoded multihash that says SHA-256; its digest may have any length."""
    if isinstance(value, str) and is_multihash(value):
        return value
    if not isinstance(value, str) or not value or not is_base64url(value) or not _is_sha256(decode_base64(value)):
        shown = "missing" if value is None else f"{value[:60]!r}" if isinstance(value, str) else "not a string"
        raise RequestError("not_multihash", f"{what} must be a SHA-256 multihash in base64url, but is {shown}")
    return value


def check_key(value: object) -> Object:
    """*value*, which must look like a public key on secp256k1; whether it is one is known when a signature is checked.

    Raises :class:`RequestError`.
    """
    key = allow_members(value, {"kty", "crv", "x", "y"}, "a public key")
    if (key.get("kty"), key.get("crv")) != ("EC", "secp256k1"):
        raise RequestError(
            "key_not_allowed",
            f"a public key must have the kty 'EC' and the crv 'secp256k1', not {str(key.get('kty'))[:20]!r} and "
            f"{str(key.get('crv'))[:20]!r}",
        )
    if not all(isinstance(key.get(name), str) and utf16_length(key[name]) == _COORDINATE_LENGTH for name in "xy"):
        raise RequestError(
            "key_invalid", f"'x' and 'y' of a public key must be strings of {_COORDINATE_LENGTH} characters each"
        )
    return key


def check_suffix_data(value: object) -> Object:
    """*value*, which must be the suffix data of a create. Raises :class:`RequestError`."""
    if not isinstance(value, dict):
        raise RequestError("suffix_data", "suffixData must be an object")
    data = allow_members(value, {"deltaHash", "recoveryCommitment", "type"}, "suffixData")
    for name in ("deltaHash", "recoveryCommitment"):
        check_multihash(data.get(name), f"{name} of suffixData")
    kind = data.get("type", "any")
    if not isinstance(kind, str) or not 0 < len(kind) <= 4 or not is_base64url(kind):
        raise RequestError(
            "suffix_data", f"the type {str(kind)[:60]!r} in suffixData must have 1 to 4 characters of base64url"
        )
    return data


def check_signed(kind: OperationType, text: object, suffix: object, missing: object) -> CompactJws:
    """The signed data *text* of an operation *kind*; that of a deactivate must name *suffix*, or none if *missing*.

    The signature itself is not verified. Raises :class:`RequestError`.
    """
    parts = split_jws(text)
    if not all(map(is_base64url, parts)) or not _is_es256k(parts[0]):
        raise RequestError(
            "signed_data_invalid", "signedData must be a compact JWS whose header contains only the alg ES256K"
        )
    try:
        payload = decode_json(decode_base64(parts[1]))
    except ReferenceJsonError as error:
        raise RequestError("signed_data_invalid", f"invalid payload of signedData: {error}") from error
    key, hashes, count = _SIGNED[kind]
    if not isinstance(payload, dict) or len(payload) != count:
        raise RequestError(
            "signed_data_invalid",
            f"the signed data of a {kind} operation must be an object with exactly {count} members",
        )
    if kind == OperationType.DEACTIVATE and payload.get("didSuffix", missing) != suffix:
        raise RequestError(
            "signed_data_invalid",
            "didSuffix in the signed data of the deactivate operation differs from the didSuffix of the operation",
        )
    check_key(payload.get(key))
    for name in hashes:
        check_multihash(payload.get(name), f"{name} of the signed data")
    return CompactJws(str(text), "ES256K", payload)


def check_delta(value: object, profile: Profile) -> bytes:
    """The canonical JSON of *value*, which must be a delta of a size that is allowed. Raises :class:`RequestError`."""
    if value is None:
        raise RequestError("delta", "the delta must be an object")
    data = canonical(value)
    if len(data) > profile.max_delta_bytes:
        raise RequestError(
            "delta_too_large", f"the delta is larger than the limit of {profile.max_delta_bytes:,} bytes"
        )
    check_delta_members(value, profile)
    return data


def check_delta_members(value: object, profile: Profile) -> Object:
    """*value*, which must be a delta of any size. Raises :class:`RequestError`."""
    if not isinstance(value, dict):
        raise RequestError("delta", "the delta must be an object")
    allow_members(value, {"patches", "updateCommitment"}, "a delta")
    for patch in _list(value.get("patches"), "patches"):
        _check_patch(patch, profile)
    check_multihash(value.get("updateCommitment"), "updateCommitment of the delta")
    return value


def _is_sha256(data: bytes) -> bool:
    """Whether *data* is a multihash: the code of SHA-256 and the length of the digest as varints, and the digest."""
    code, data = _varint(data)
    length, data = _varint(data)
    return code == _SHA2_256 and length is not None and 0 < length == len(data)


def _varint(data: bytes) -> tuple[int | None, bytes]:
    number = 0
    for place, byte in enumerate(data[:_LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, data[place + 1 :]
    return None, b""


def _check_patch(patch: object, profile: Profile) -> None:
    members = own_members(patch, "a patch")
    action = require_action(members.get("action"), profile)
    if action in _CHECKS:
        try:
            _CHECKS[action](members)
        except RequestError as error:
            raise of_action(action, error) from error
    else:  # one that the network has added, which the reference does not know
        check_patches([patch], profile)


_USUAL_HEADER: Final = encode(b'{"alg":"ES256K"}')


def _is_es256k(header: str) -> bool:
    """Whether *header* is the JSON object ``{"alg": "ES256K"}``, read with ``JSON.parse``."""
    if header == _USUAL_HEADER:
        return True
    try:
        return bool(decode_native(decode_base64(header)) == {"alg": "ES256K"})
    except ReferenceJsonError:
        return False


def _check_replace(patch: Object) -> None:
    if not isinstance(patch.get("document"), dict | list):
        raise _wrong("the document must be an object")
    document = allow_members(patch["document"], {"publicKeys", "services"}, "the document")
    if "publicKeys" in document:
        _check_keys(document["publicKeys"])
    if "services" in document:
        _check_services(document["services"])


def _check_add(member: str, check: Callable[[object], None]) -> Callable[[Object], None]:
    def checked(patch: Object) -> None:
        if len(patch) != 2:
            raise _wrong(f"its members must be exactly 'action' and {member!r}")
        check(patch.get(member))

    return checked


def _check_remove(patch: Object) -> None:
    allow_members(patch, {"action", "ids"}, "the patch")
    for name in _list(patch.get("ids"), "ids"):
        _check_id(name)


def _check_keys(keys: object) -> None:
    ids = set[str]()
    for item in _list(keys, "publicKeys"):
        key = allow_members(item, {"id", "type", "purposes", "publicKeyJwk"}, "a public key")
        if not isinstance(key.get("publicKeyJwk", 0), dict | None):
            raise _wrong(f"the publicKeyJwk of public key {str(key.get('id'))[:60]!r} must be an object")
        if not isinstance(key.get("type"), str):
            raise _wrong(f"the type of public key {str(key.get('id'))[:60]!r} must be a string")
        _add_id(key.get("id"), ids)
        if "purposes" in key:
            check_purposes(_list(key["purposes"], "purposes"))


def _check_services(services: object) -> None:
    ids = set[str]()
    for item in _list(services, "services"):
        service = own_members(item, "a service")
        if len(service) != 3:
            raise _wrong(
                f"service {str(service.get('id'))[:60]!r} must have exactly the members 'id', 'type' and "
                "'serviceEndpoint'"
            )
        _add_id(service.get("id"), ids)
        kind = service.get("type")
        if not isinstance(kind, str) or utf16_length(kind) > MAX_SERVICE_TYPE_LENGTH:
            raise _wrong(
                f"the type of service {str(service.get('id'))[:60]!r} must be a string of at most "
                f"{MAX_SERVICE_TYPE_LENGTH} UTF-16 code units"
            )
        endpoint = service.get("serviceEndpoint", 0)
        if isinstance(endpoint, str):
            check_uri(endpoint)
        elif not isinstance(endpoint, dict | None):
            raise _wrong(
                f"the serviceEndpoint of service {str(service.get('id'))[:60]!r} must be a URI (a string) or an object"
            )


def _add_id(name: object, ids: set[str]) -> None:
    if _check_id(name) in ids:
        raise _wrong(f"id {name!r} occurs twice: use each id once")
    ids.add(str(name))


def _check_id(name: object) -> str:
    if not isinstance(name, str) or not name or utf16_length(name) > MAX_ID_LENGTH or not is_base64url(name):
        raise _wrong(f"invalid id {str(name)[:60]!r}: use 1 to {MAX_ID_LENGTH} characters of base64url")
    return name


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{name!r} must be a list")
    return value


def _wrong(text: str) -> RequestError:
    return RequestError("patch_invalid", text)


_CHECKS: Mapping[str, Callable[[Object], None]] = {
    REPLACE: _check_replace,
    ADD_KEYS: _check_add("publicKeys", _check_keys),
    REMOVE_KEYS: _check_remove,
    ADD_SERVICES: _check_add("services", _check_services),
    REMOVE_SERVICES: _check_remove,
}
