"""The id of an operation: the same for every spelling of its signature."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.anchoring.sidetree import Operation
from millstream.anchoring.sidetree.encoding import canonical, hash_bytes


def operation_id(operation: Operation) -> str:
    """The hash of the canonical request of *operation*, with its signature in normal form."""
    request = operation.request
    if operation.signed is not None:
        request = {**request, "signedData": operation.signed.normalized}
    return hash_bytes(canonical(request))


def known_ids(operation: Operation, request: bytes) -> Sequence[str]:
    """The ids under which *operation* may be recorded; earlier releases hashed its canonical *request* as it is."""
    if operation.signed is None or operation.signed.normalized == operation.signed.text:
        return [hash_bytes(request)]
    return [operation_id(operation), hash_bytes(request)]
