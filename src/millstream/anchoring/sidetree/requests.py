"""Operations as a client makes them: keys in, signed requests out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.anchoring.sidetree.encoding import canonical, commitment_to, hash_of
from millstream.anchoring.sidetree.keys import PrivateKey
from millstream.anchoring.sidetree.signatures import sign

Patches = Sequence[Mapping[str, Any]]
PublicKey = Mapping[str, str]


def create_request(patches: Patches, *, update_key: PublicKey, recovery_key: PublicKey, kind: str = "") -> bytes:
    """A create: the document that *patches* make, and the public keys that may update and recover it."""
    delta = _delta(patches, update_key)
    suffix_data = {"deltaHash": hash_of(delta), "recoveryCommitment": commitment_to(recovery_key)}
    if kind:
        suffix_data["type"] = kind
    return canonical({"type": "create", "suffixData": suffix_data, "delta": delta})


def update_request(suffix: str, patches: Patches, *, key: PrivateKey, next_update_key: PublicKey) -> bytes:
    """An update, signed by the update key that the DID waits for."""
    delta = _delta(patches, next_update_key)
    signed = sign({"updateKey": key.public, "deltaHash": hash_of(delta)}, key)
    return canonical({**_head("update", suffix, key), "delta": delta, "signedData": signed})


def recover_request(
    suffix: str, patches: Patches, *, key: PrivateKey, next_recovery_key: PublicKey, next_update_key: PublicKey
) -> bytes:
    """A recovery: *patches* replace the document, under new keys; signed by the recovery key."""
    delta = _delta(patches, next_update_key)
    commitment = commitment_to(next_recovery_key)
    payload = {"recoveryKey": key.public, "deltaHash": hash_of(delta), "recoveryCommitment": commitment}
    return canonical({**_head("recover", suffix, key), "delta": delta, "signedData": sign(payload, key)})


def deactivate_request(suffix: str, *, key: PrivateKey) -> bytes:
    """The end of a DID, signed by the recovery key."""
    signed = sign({"recoveryKey": key.public, "didSuffix": suffix}, key)
    return canonical({**_head("deactivate", suffix, key), "signedData": signed})


def _delta(patches: Patches, next_key: PublicKey) -> dict[str, Any]:
    return {"patches": list(patches), "updateCommitment": commitment_to(next_key)}


def _head(kind: str, suffix: str, key: PrivateKey) -> dict[str, str]:
    return {"type": kind, "didSuffix": suffix, "revealValue": hash_of(key.public)}
