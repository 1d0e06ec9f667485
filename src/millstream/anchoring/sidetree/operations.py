"""Operations: parsed from what clients send, and checked (Sidetree v1.0, "DID Operations").

A request is checked as far as one operation can tell: form, sizes, hashes, and that it is signed by the key that it
reveals. Whether that key is the one the DID is waiting for is known when it is resolved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.anchoring.sidetree.anchor_window import anchor_window
from millstream.anchoring.sidetree.encoding import (
    bytes_hash_to,
    canonical,
    check_multihash,
    commitment_of,
    has_to_json,
    hash_bytes,
    hashes_to,
    is_base64url,
    plain_canonical,
)
from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.javascript import MAX_DELTA_DEPTH, is_deeper
from millstream.anchoring.sidetree.keys import check_key
from millstream.anchoring.sidetree.model import KEY_MEMBERS, Object, Operation, OperationType
from millstream.anchoring.sidetree.patches import check_patches
from millstream.anchoring.sidetree.profile import Profile
from millstream.anchoring.sidetree.reference_json import ReferenceJsonError, decode_json, is_plain_portable, is_portable
from millstream.anchoring.sidetree.signatures import CompactJws, parse_jws, read_jws
from millstream.core.decoding import prepared

_SIGNED_MEMBERS = {
    OperationType.UPDATE: {"updateKey", "deltaHash"},
    OperationType.RECOVER: {"recoveryKey", "deltaHash", "recoveryCommitment"},
    OperationType.DEACTIVATE: {"recoveryKey", "didSuffix"},
}
_SIGNED_HASHES = {kind: names & {"deltaHash", "recoveryCommitment"} for kind, names in _SIGNED_MEMBERS.items()}
_REQUEST_MEMBERS = {
    OperationType.CREATE: {"type", "suffixData", "delta"},
    OperationType.UPDATE: {"type", "didSuffix", "revealValue", "delta", "signedData"},
    OperationType.RECOVER: {"type", "didSuffix", "revealValue", "delta", "signedData"},
    OperationType.DEACTIVATE: {"type", "didSuffix", "revealValue", "signedData"},
}
_DELTA_MEMBERS = {"patches", "updateCommitment"}
_TYPES: Mapping[object, OperationType] = {kind.value: kind for kind in OperationType}
_decoder = msgspec.json.Decoder()
_requests = msgspec.json.Decoder(prepared(dict[str, Any]))


def parse_request(data: bytes, profile: Profile) -> Operation:
    """The operation in the JSON *data* of a client. Raises :class:`RequestError`, which names the rule it breaks."""
    return parse_with_canonical(data, profile)[0]


def parse_with_canonical(data: bytes, profile: Profile) -> tuple[Operation, bytes]:
    """As :func:`parse_request`, and the canonical JSON of the request."""
    if len(data) > profile.max_operation_bytes:
        raise RequestError(
            "operation_too_large", f"the operation is larger than the limit of {profile.max_operation_bytes:,} bytes"
        )
    try:
        request = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("not_json", f"the operation is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestError("not_json", "an operation must be a JSON object")
    kind = _type_of(request)
    if request.keys() != _REQUEST_MEMBERS[kind]:
        raise RequestError(
            "members", f"a {kind} operation must have exactly the members {', '.join(sorted(_REQUEST_MEMBERS[kind]))}"
        )
    return _create(request, profile) if kind == OperationType.CREATE else _signed_operation(kind, request, profile)


def stored_operation(data: bytes, suffix: str) -> Operation:
    """The operation whose request was checked and stored as *data* once; its delta may be None.

    Nothing is checked again.
    """
    request = _stored(data)
    kind = OperationType(request["type"])
    if kind == OperationType.CREATE:
        return Operation(kind, suffix, request["delta"], request["suffixData"])
    signed = read_jws(request["signedData"])
    return Operation(kind, suffix, request.get("delta"), reveal_value=request["revealValue"], signed=signed)


def _stored(data: bytes) -> dict[str, Any]:
    try:
        return _requests.decode(data)
    except msgspec.DecodeError:  # text with a lone surrogate
        return json.loads(data)  # type: ignore[no-any-return]


def check_suffix_data(value: object, profile: Profile) -> Object:
    """*value*, which must be the suffix data of a create. Raises :class:`RequestError`."""
    required, optional = {"deltaHash", "recoveryCommitment"}, {"type"} | profile.extra_suffix_data
    if not isinstance(value, dict) or not required <= set(value) <= required | optional:
        names, extra = (", ".join(sorted(each)) for each in (required, optional))
        raise RequestError("suffix_data", f"suffixData must have the members {names}, and optionally {extra}")
    for name in required:
        check_multihash(value[name], f"{name} of suffixData")
    kind = value.get("type", "any")
    if not isinstance(kind, str) or not 0 < len(kind) <= 4 or not is_base64url(kind):
        raise RequestError(
            "suffix_data", f"the type {str(kind)[:60]!r} in suffixData must have 1 to 4 characters of base64url"
        )
    return value


def check_delta(value: object, profile: Profile) -> Object:
    """*value*, which must be a delta of a size that is allowed. Raises :class:`RequestError`."""
    return _sized_delta(value, profile)[0]


def check_signed(kind: OperationType, text: object, profile: Profile, suffix: str) -> CompactJws:
    """The signed data *text* of an operation *kind* on *suffix*, with the members it must have.

    The signature itself is not verified. Raises :class:`RequestError`.
    """
    signed = parse_jws(text, profile)
    members, required = signed.payload.keys(), _SIGNED_MEMBERS[kind]
    if members != required and not required <= members <= required | profile.extra_signed:
        names, extra = (", ".join(sorted(each)) for each in (required, profile.extra_signed))
        raise RequestError(
            "signed_data_invalid",
            f"the signed data of a {kind} operation must have exactly the members {names}"
            + (f", and optionally {extra}" if extra else ""),
        )
    check_key(signed.payload[KEY_MEMBERS[kind]], profile)
    for name in _SIGNED_HASHES[kind]:
        check_multihash(signed.payload[name], f"{name} of the signed data")
    anchor_window(signed.payload, profile)
    if kind == OperationType.DEACTIVATE and signed.payload["didSuffix"] != suffix:
        raise RequestError(
            "signed_data_invalid",
            "didSuffix in the signed data of the deactivate operation differs from the didSuffix of the operation",
        )
    return signed


def check_reference(value: object) -> tuple[str, str]:
    """The suffix and reveal value of *value*, an object with both. Raises :class:`RequestError`."""
    if not isinstance(value, dict) or not {"didSuffix", "revealValue"} <= set(value):
        raise RequestError("reference", "an operation reference must have the members 'didSuffix' and 'revealValue'")
    suffix = check_multihash(value["didSuffix"], "didSuffix")
    return suffix, check_multihash(value["revealValue"], "revealValue")


def time_window_fault(operation: Operation, profile: Profile, time: int) -> str | None:
    """The reason why *operation* may not be anchored at *time* (microseconds); None if it may."""
    if operation.signed is None or not profile.extra_signed:
        return None
    return anchor_window(operation.signed.payload, profile).fault(time)


def reveals_its_key(operation: Operation) -> bool:
    """Whether the reveal value is that of the key, and the signature one of that key."""
    signed = operation.signed
    if signed is None:
        return False
    key = operation.key
    return hashes_to(key, operation.reveal_value) and signed.verifies_with(key)


def _type_of(request: Object) -> OperationType:
    kind = request.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise RequestError(
            "type", f"the type of an operation must be create, update, recover or deactivate, not {repr(kind)[:60]}"
        )
    return _TYPES[kind]


def _sized_delta(value: object, profile: Profile) -> tuple[Object, bytes, bool]:
    """A delta of a size that is allowed, and its canonical bytes, which cost more than all other checks; whether they
    are those of :func:`plain_canonical`."""
    if not isinstance(value, dict) or value.keys() != _DELTA_MEMBERS:
        raise RequestError("delta", "a delta must have exactly the members 'patches' and 'updateCommitment'")
    plain = plain_canonical(value)
    data = canonical(value, depth=MAX_DELTA_DEPTH) if plain is None else plain
    if len(data) > profile.max_delta_bytes:
        raise RequestError(
            "delta_too_large", f"the delta has {len(data):,} bytes; the limit is {profile.max_delta_bytes:,} bytes"
        )
    check_patches(value["patches"], profile)
    check_multihash(value["updateCommitment"], "updateCommitment of the delta")
    if profile.reference and (plain is None or not is_plain_portable(plain)):
        _refuse_unportable(value, data)
    return value, data, plain is not None


def _written_delta(value: object, profile: Profile) -> tuple[Object, bytes, bool]:
    """As :func:`_sized_delta`, for one that is to be written: in a file, it stands beside deltas that are not plain."""
    delta, data, is_plain = _sized_delta(value, profile)
    if is_plain and data.count(b"[") + data.count(b"{") > MAX_DELTA_DEPTH and is_too_deep(delta):
        raise RequestError(
            "not_canonical", f"a value in the delta is nested deeper than the limit of {MAX_DELTA_DEPTH} levels"
        )
    return delta, data, is_plain


def is_too_deep(delta: Object) -> bool:
    """Whether *delta* is nested so deeply that not every batch can have it."""
    return is_deeper(delta, MAX_DELTA_DEPTH)


def _refuse_unportable(delta: Object, data: bytes) -> None:
    """A delta must be read by everybody as it was meant; *data* is its canonical JSON."""
    if has_to_json(data):
        raise RequestError(
            "not_portable",
            "an object in a delta must not have the member 'toJSON', because readers would hash it differently",
        )
    try:
        same = is_portable(data) or decode_json(data) == delta
    except ReferenceJsonError:
        same = False
    if not same:
        raise RequestError(
            "not_portable",
            "some readers would read a number or a name in the delta differently: use integers within ±2^53, numbers "
            "that canonical JSON writes without an exponent, and no member '__proto__'",
        )


def _create(request: Object, profile: Profile) -> tuple[Operation, bytes]:
    suffix_data = check_suffix_data(request["suffixData"], profile)
    delta, data, is_plain = _written_delta(request["delta"], profile)
    if not bytes_hash_to(data, suffix_data["deltaHash"]):
        raise RequestError("delta_hash", "the hash of the delta does not match deltaHash in suffixData")
    _require_two_keys(delta["updateCommitment"], suffix_data["recoveryCommitment"])
    plain = plain_canonical(suffix_data)
    head = canonical(suffix_data) if plain is None else plain
    operation = Operation(OperationType.CREATE, hash_bytes(head), delta, suffix_data)
    if plain is None or not is_plain:  # as a whole it may be nested too deeply
        return operation, canonical(operation.request)
    return operation, b'{"delta":%b,"suffixData":%b,"type":"create"}' % (data, head)


def _signed_operation(kind: OperationType, request: Object, profile: Profile) -> tuple[Operation, bytes]:
    suffix, reveal_value = check_reference(request)
    signed = check_signed(kind, request["signedData"], profile, suffix)
    delta, start, is_plain = None, b"{", True
    if kind != OperationType.DEACTIVATE:
        delta, data, is_plain = _written_delta(request["delta"], profile)
        if not bytes_hash_to(data, signed.payload["deltaHash"]):
            raise RequestError("delta_hash", "the hash of the delta does not match deltaHash in the signed data")
        start = b'{"delta":%b,' % data
    operation = Operation(kind, suffix, delta, reveal_value=reveal_value, signed=signed)
    if not reveals_its_key(operation):
        raise RequestError("signature", "the operation must be signed by the key whose hash is its revealValue")
    _refuse_reuse(operation)
    if not is_plain:  # as a whole it may be nested too deeply
        return operation, canonical(operation.request)
    # What follows the delta is base64url, with dots in the signed data: nothing is to be escaped.
    rest = f'"didSuffix":"{suffix}","revealValue":"{reveal_value}","signedData":"{signed.text}","type":"{kind.value}"}}'
    return operation, start + rest.encode("ascii")


def _refuse_reuse(operation: Operation) -> None:
    """A revealed key is public: no operation may commit to it again, and a recover must commit to two keys."""
    next_update = (operation.delta or {}).get("updateCommitment")
    next_recovery = operation.payload.get("recoveryCommitment")
    if commitment_of(operation.reveal_value) in (next_update, next_recovery):
        raise RequestError("key_reuse", "the next commitment must be to a new key, not to the key of revealValue")
    if operation.type == OperationType.RECOVER:
        _require_two_keys(next_update, next_recovery)


def _require_two_keys(update_commitment: object, recovery_commitment: object) -> None:
    if update_commitment == recovery_commitment:
        raise RequestError("key_reuse", "the update commitment and the recovery commitment must differ")
