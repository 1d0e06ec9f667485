"""DIDs and what resolving one answers (Sidetree v1.0, "DID URI Composition" and "Resolution").

A short form is ``did:METHOD:SUFFIX``. A long form carries the create operation behind it, so that a DID can be used
before it is anchored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.sidetree import reference_rules
from millstream.anchoring.sidetree.encoding import (
    canonical,
    check_multihash,
    decode,
    encode,
    hash_of,
    hashes_to,
    is_base64url,
)
from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.javascript import decode_base64
from millstream.anchoring.sidetree.json_patch import RESERVED
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.operations import check_delta, check_suffix_data
from millstream.anchoring.sidetree.patches import PURPOSES
from millstream.anchoring.sidetree.profile import Profile
from millstream.anchoring.sidetree.reference_json import ReferenceJsonError, decode_native
from millstream.anchoring.sidetree.reference_reader import as_applied
from millstream.anchoring.sidetree.resolver import AnchoredOperation, DidState, initial_state, resolve

RESOLUTION_CONTEXT = "https://w3id.org/did-resolution/v1"
DOCUMENT_CONTEXT = "https://www.w3.org/ns/did/v1"

_NOT_CANONICAL = "the long form of the DID must be a JSON object in canonical form (RFC 8785), in base64url"


class Did(msgspec.Struct, frozen=True):
    """A DID; ``create`` is the operation that a long form carries, ``text`` the DID as it was written."""

    text: str
    method: str
    suffix: str
    create: Operation | None = None

    @property
    def short(self) -> str:
        return f"did:{self.method}:{self.suffix}"


def parse_did(text: str, profile: Profile) -> Did:
    """The DID in *text*. Raises :class:`RequestError`: not of this method, or a long form that is not canonical."""
    prefix = f"did:{profile.method}:"
    if len(text) > (limit := 4 * profile.max_operation_bytes):
        raise RequestError("did", f"the DID {text[:60]!r} has more than {limit:,} characters, the limit")
    if not text.startswith(prefix):
        raise RequestError("did", f"unknown DID method in {text[:60]!r}: DIDs of this node begin with {prefix!r}")
    suffix, separator, state = text[len(prefix) :].partition(":")
    check_multihash(suffix, "the suffix of the DID")
    create = _initial_state(state, suffix, profile) if separator else None
    return Did(text, profile.method, suffix, create)


def long_form(create: Operation, profile: Profile) -> str:
    """The long form of the DID that *create* makes."""
    state = encode(canonical({"suffixData": create.suffix_data, "delta": create.delta}))
    return f"did:{profile.method}:{create.suffix}:{state}"


def resolution(
    did: Did, state: DidState | None, *, published: bool = True, unpublished: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """The answer for *did* whose state is *state*; None where nothing is known of it.

    The state is anchored, unless *published* is False. *unpublished* are descriptions of operations that are not
    anchored, to be listed in the metadata.
    """
    if state is not None:
        answer = _answer(did, state, published=published)
        if unpublished:
            answer["didDocumentMetadata"]["method"]["unpublishedOperations"] = list(unpublished)
        return answer
    if did.create is None:
        return None
    initial = resolve([AnchoredOperation(-1, 0, did.create)])
    assert initial is not None, "a checked create has a state"
    return _answer(did, initial, published=False)


def created(create: Operation, profile: Profile) -> dict[str, Any]:
    """The answer for the DID that *create* makes, while it is not anchored."""
    did = Did(f"did:{profile.method}:{create.suffix}", profile.method, create.suffix, create)
    return _answer(did, initial_state(create), published=False)


def _initial_state(text: str, suffix: str, profile: Profile) -> Operation | None:
    if profile.reference:
        return _as_reference(text, suffix, profile)
    try:
        value = msgspec.json.decode(decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("did", f"the long form of the DID is not valid JSON: {error}") from error
    if not isinstance(value, dict) or set(value) != {"suffixData", "delta"}:
        raise RequestError("did", "the long form of a DID must contain exactly 'suffixData' and 'delta'")
    if encode(canonical(value)) != text:
        raise RequestError("did", _NOT_CANONICAL)
    suffix_data, delta = check_suffix_data(value["suffixData"], profile), check_delta(value["delta"], profile)
    if hash_of(suffix_data) != suffix:
        raise RequestError("did", "the hash of the suffixData in the long form does not match the suffix of this DID")
    if not hashes_to(delta, suffix_data["deltaHash"]):
        raise RequestError("did", "the hash of the delta in the long form does not match deltaHash in its suffixData")
    return Operation(OperationType.CREATE, suffix, delta, suffix_data)


def _as_reference(text: str, suffix: str, profile: Profile) -> Operation | None:
    """The create in the long form, which the reference takes; None where it cannot be applied."""
    try:
        value = decode_native(decode_base64(text)) if is_base64url(text) else None
    except ReferenceJsonError as error:
        raise RequestError("did", f"cannot read the long form of the DID: {error}") from error
    if not isinstance(value, dict) or encode(canonical(value)) != text:
        raise RequestError("did", _NOT_CANONICAL)
    delta = value.get("delta")
    reference_rules.check_delta(delta, profile)
    suffix_data = reference_rules.check_suffix_data(value.get("suffixData"))
    if hash_of(suffix_data) != suffix:
        raise RequestError("did", "the hash of the suffixData in the long form does not match the suffix of this DID")
    return as_applied(Operation(OperationType.CREATE, suffix, delta, suffix_data), profile)


def _answer(did: Did, state: DidState, *, published: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {"method": {"published": published}}
    if state.deactivated:
        document = _head(did.short)
        metadata |= {"deactivated": True, "canonicalId": did.short} if published else {"deactivated": True}
    else:
        document = _document(did.text, state)
        metadata["method"]["recoveryCommitment"] = state.recovery_commitment
        if state.update_commitment is not None:
            metadata["method"]["updateCommitment"] = state.update_commitment
        if did.text != did.short:
            metadata["equivalentId"] = [did.short]
        if published:
            metadata["canonicalId"] = did.short
    return {"@context": RESOLUTION_CONTEXT, "didDocument": document, "didDocumentMetadata": metadata}


def _head(name: str) -> dict[str, Any]:
    return {"id": name, "@context": [DOCUMENT_CONTEXT, {"@base": name}]}


def _document(name: str, state: DidState) -> dict[str, Any]:
    content, document = state.document, _head(name)
    document |= {member: value for member, value in content.items() if member not in RESERVED}
    if "alsoKnownAs" in content:
        document["alsoKnownAs"] = content["alsoKnownAs"]
    if "services" in content:
        document["service"] = [
            {"id": f"#{each['id']}", "type": each["type"], "serviceEndpoint": each["serviceEndpoint"]}
            for each in content["services"]
        ]
    keys = content.get("publicKeys", [])
    if keys:
        document["verificationMethod"] = [
            {"id": f"#{key['id']}", "controller": name, "type": key["type"], "publicKeyJwk": key["publicKeyJwk"]}
            for key in keys
        ]
    for purpose in PURPOSES:
        users = [f"#{key['id']}" for key in keys if purpose in key.get("purposes", [])]
        if users:
            document[purpose] = users
    return document
