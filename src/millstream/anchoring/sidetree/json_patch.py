"""The patch action ``ietf-json-patch``: a JSON Patch (RFC 6902) on members without a specific patch action.

A network enables it in the ``patches`` of its profile. Needs ``pip install 'millstream[sidetree]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.anchoring.sidetree.errors import RequestError
from millstream.core.canonical import CanonicalError, canonical_json

MAX_DOCUMENT_BYTES = 100_000
"""How large the canonical document may grow: each copy can double it, and many copies fit into one delta."""

RESERVED = frozenset(
    {"id", "@context", "controller", "service", "verificationMethod", "publicKeys", "services", "alsoKnownAs"}
)
"""Members that no JSON Patch may touch, beside the purposes of keys: others patch them, or resolution writes them."""

_ACTIONS = {"service": "services", "services": "services", "alsoKnownAs": "also-known-as"}
_OF_RESOLUTION = frozenset({"id", "@context", "controller"})

_OPERATIONS: Mapping[str, frozenset[str]] = {
    "add": frozenset({"value"}),
    "remove": frozenset(),
    "replace": frozenset({"value"}),
    "move": frozenset({"from"}),
    "copy": frozenset({"from"}),
    "test": frozenset({"value"}),
}


def check_json_patch(operations: object, purposes: Sequence[str]) -> None:
    """Refuse *operations* that are no JSON Patch, or touch what it may not. Raises :class:`RequestError`."""
    if not isinstance(operations, list) or not operations:
        raise _wrong("'patches' of a JSON patch must be a list of at least one operation")
    for operation in operations:
        if not isinstance(operation, dict) or str(operation.get("op")) not in _OPERATIONS:
            raise _wrong(
                f"an operation of a JSON patch must be an object whose 'op' is one of {', '.join(_OPERATIONS)}, not "
                f"{repr(operation)[:60]}"
            )
        members = _OPERATIONS[operation["op"]] | {"op", "path"}
        if set(operation) != members:
            raise _wrong(
                f"the operation {operation['op']!r} must have exactly the members {', '.join(sorted(members))}"
            )
        for name in members & {"path", "from"}:
            _check_pointer(operation[name], purposes)


def apply_json_patch(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """*document* after checked *operations*, all or none; *document* itself stays as it is.

    Raises :class:`RequestError` where one does not apply, or the document would grow beyond its bound.
    """
    import jsonpatch
    import jsonpointer

    changed = dict(document)
    for operation in operations:
        try:
            changed = jsonpatch.JsonPatch([operation]).apply(changed)
            size = len(canonical_json(changed))
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, CanonicalError, TypeError) as error:
            raise RequestError("patch_failed", f"the JSON patch cannot be applied: {error}") from error
        if size > MAX_DOCUMENT_BYTES:
            raise RequestError(
                "patch_failed", f"the patched document is larger than the limit of {MAX_DOCUMENT_BYTES:,} bytes"
            )
    return changed


def _check_pointer(pointer: object, purposes: Sequence[str]) -> None:
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise _wrong(
            f"the path {str(pointer)[:60]!r} of a JSON patch operation must point to a member of the document: '/name…'"
        )
    member = pointer[1:].split("/", 1)[0].replace("~1", "/").replace("~0", "~")
    if member in RESERVED or member in purposes:
        raise _wrong(f"a JSON patch must not change {member!r}: {_remedy(member)}")


def _remedy(member: str) -> str:
    if member in _OF_RESOLUTION:
        return "resolution writes this member"
    action = _ACTIONS.get(member, "public-keys")  # the others list public keys
    return f"use the patch action add-{action} or remove-{action}"


def _wrong(text: str) -> RequestError:
    return RequestError("patch_invalid", text)
