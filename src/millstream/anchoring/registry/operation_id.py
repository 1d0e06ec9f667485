"""The id of an operation: the same for every spelling of its signature."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.anchoring.sidetree import Operation
from millstream.anchoring.sidetree.encoding import canonical, hash_bytes


def operation_id(operation: Operation, request: bytes) -> str:
    """The hash of the canonical *request* of *operation*, with its signature in normal form."""
    return _normalized_id(operation) or hash_bytes(request)


def known_ids(operation: Operation, request: bytes) -> Sequence[str]:
    """The ids under which *operation* may be recorded; earlier releases hashed its canonical *request* as it is."""
    normalized = _normalized_id(operation)
    return [hash_bytes(request)] if normalized is None else [normalized, hash_bytes(request)]


def has_one_id(operation: Operation) -> bool:
    """Whether the signature of *operation* is in normal form, so that all releases give it the same id."""
    return operation.signed is None or operation.signed.normalized == operation.signed.text


def _normalized_id(operation: Operation) -> str | None:
    """The id of *operation* if its signature is not in normal form."""
    if operation.signed is None or has_one_id(operation):
        return None
    return hash_bytes(canonical({**operation.request, "signedData": operation.signed.normalized}))
