"""Patches: how an operation changes the document of a DID (Sidetree v1.0, "DID State Patches").

The document here is the state that patches work on: ``{"publicKeys": […], "services": […], "alsoKnownAs": […]}``, and
other members where the network allows JSON patches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millstream.anchoring.sidetree.encoding import is_base64url
from millstream.anchoring.sidetree.errors import RequestError, repeated
from millstream.anchoring.sidetree.javascript import utf16_length
from millstream.anchoring.sidetree.json_patch import apply_json_patch, check_json_patch
from millstream.anchoring.sidetree.profile import (
    ADD_KEYS,
    ADD_NAMES,
    ADD_SERVICES,
    JSON_PATCH,
    REMOVE_KEYS,
    REMOVE_NAMES,
    REMOVE_SERVICES,
    REPLACE,
    Profile,
)
from millstream.anchoring.sidetree.uris import check_uri

Document = dict[str, Any]

MAX_ID_LENGTH = 50
MAX_SERVICE_TYPE_LENGTH = 30
PURPOSES = ("authentication", "assertionMethod", "keyAgreement", "capabilityInvocation", "capabilityDelegation")

_KEY_MEMBERS = frozenset({"id", "type", "publicKeyJwk"})
_SERVICE_MEMBERS = frozenset({"id", "type", "serviceEndpoint"})
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(?:#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?")  # fmt: skip  # noqa: E501


def check_patches(patches: object, profile: Profile) -> Sequence[Mapping[str, Any]]:
    """*patches*, which must be a list of patches that *profile* allows. Raises :class:`RequestError`."""
    if not isinstance(patches, list) or (not patches and not profile.empty_patches):
        at_least = "" if profile.empty_patches else " of at least one patch"
        raise _wrong(f"'patches' of a delta must be a list{at_least}")
    for patch in patches:
        action = require_action(patch.get("action") if isinstance(patch, dict) else None, profile)
        member, check = _CHECKS[action]
        if patch.keys() != _PATCH_MEMBERS[member]:
            raise _wrong(f"patch {action!r}: its members must be exactly 'action' and {member!r}")
        try:
            check(patch[member])
        except RequestError as error:
            raise of_action(action, error) from error
    return patches


def of_action(action: str, error: RequestError) -> RequestError:
    """*error*, which names the *action* of the patch."""
    return RequestError(error.code, f"patch {action!r}: {error}")


def require_action(action: object, profile: Profile) -> str:
    """The *action* of a patch, which must be one that *profile* allows; None where the patch has none.

    Raises :class:`RequestError`.
    """
    if isinstance(action, str) and action in profile.patches:
        return action
    found = (
        f"the patch action {action[:40]!r} is not allowed" if isinstance(action, str) else "a patch lacks its action"
    )
    allowed = ", ".join(sorted(profile.patches))
    raise RequestError("patch_not_allowed", f"{found}: each patch must be an object whose 'action' is one of {allowed}")


def apply_patches(document: Document, patches: Iterable[Mapping[str, Any]]) -> Document:
    """*document* after *patches* (checked ones), in order; *document* itself stays as it is.

    Raises :class:`RequestError` where a JSON patch does not apply.
    """
    for patch in patches:
        document = _APPLIERS[patch["action"]](document, patch)
    return document


def _check_document(document: object) -> None:
    if not isinstance(document, dict) or set(document) - {"publicKeys", "services"}:
        raise _wrong("the document must be an object; its only members may be 'publicKeys' and 'services'")
    for member, check in (("publicKeys", _check_keys), ("services", _check_services)):
        if member in document:
            check(document[member])


def _check_keys(keys: object) -> None:
    checked = _objects(keys, "publicKeys")
    for key in checked:
        if not _KEY_MEMBERS <= key.keys() <= _KEY_MEMBERS | {"purposes"}:
            raise _wrong(
                f"invalid public key {str(key.get('id'))[:60]!r}: its members must be 'id', 'type', 'publicKeyJwk' and "
                "optionally 'purposes'"
            )
        if not isinstance(key["publicKeyJwk"], dict) or not isinstance(key["type"], str):
            raise _wrong(
                f"invalid public key {str(key['id'])[:60]!r}: publicKeyJwk must be an object, and type a string"
            )
        purposes = key.get("purposes", [])
        if not isinstance(purposes, list):
            raise _wrong(f"the purposes of public key {str(key['id'])[:60]!r} must be a list of {', '.join(PURPOSES)}")
        check_purposes(purposes)
    _check_ids([key["id"] for key in checked], unique=True)


def check_purposes(purposes: Sequence[object]) -> None:
    """Raise :class:`RequestError` unless *purposes* are known ones, and none stands twice."""
    for purpose in purposes:
        if not isinstance(purpose, str) or purpose not in PURPOSES:
            raise _wrong(f"unknown purpose {str(purpose)[:60]!r} of a public key: use {', '.join(PURPOSES)}")
    if len(set(purposes)) != len(purposes):
        raise _wrong(
            f"the purpose {repeated(map(str, purposes))!r} of a public key occurs twice: use each purpose once"
        )


def _check_services(services: object) -> None:
    checked = _objects(services, "services")
    for service in checked:
        if service.keys() != _SERVICE_MEMBERS:
            raise _wrong(
                f"invalid service {str(service.get('id'))[:60]!r}: its members must be 'id', 'type' and "
                "'serviceEndpoint'"
            )
        if not isinstance(service["type"], str) or utf16_length(service["type"]) > MAX_SERVICE_TYPE_LENGTH:
            raise _wrong(
                f"the type of service {str(service['id'])[:60]!r} must be a string of at most "
                f"{MAX_SERVICE_TYPE_LENGTH} UTF-16 code units"
            )
        endpoint = service["serviceEndpoint"]
        if isinstance(endpoint, str):
            check_uri(endpoint)
        if not isinstance(endpoint, dict) and not (isinstance(endpoint, str) and _URI.fullmatch(endpoint)):
            raise _wrong(
                f"the serviceEndpoint {str(endpoint)[:60]!r} of service {str(service['id'])[:60]!r} must be a URI (a "
                "string) or an object"
            )
    _check_ids([service["id"] for service in checked], unique=True)


def _check_id_list(ids: object) -> None:
    if not isinstance(ids, list):
        raise _wrong("'ids' must be a list of strings, the ids to remove")
    _check_ids(ids, unique=False)


def _check_ids(ids: Sequence[object], *, unique: bool) -> None:
    for name in ids:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_LENGTH or not is_base64url(name):
            raise _wrong(f"invalid id {str(name)[:60]!r}: use 1 to {MAX_ID_LENGTH} characters of base64url")
    if unique and len(set(ids)) != len(ids):
        raise _wrong(f"{repeated(map(str, ids))!r} occurs twice among the ids: use each id once")


def _check_uris(uris: object) -> None:
    if not isinstance(uris, list):
        raise _wrong("'uris' must be a list of strings, each a URI")
    for uri in uris:
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            raise _wrong(f"{str(uri)[:60]!r} in 'uris' is not a URI")
    if len(set(uris)) != len(uris):
        raise _wrong(f"the URI {repeated(uris)!r} occurs twice in 'uris': use each URI once")


def _objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _wrong(f"{name!r} must be a list of objects")
    return value


def _wrong(text: str) -> RequestError:
    return RequestError("patch_invalid", text)


def _put(member: str, added: str) -> Callable[[Document, Mapping[str, Any]], Document]:
    """Add items with ids; one that is there already is replaced where it stands."""

    def apply(document: Document, patch: Mapping[str, Any]) -> Document:
        items = {item["id"]: item for item in document.get(member, [])}
        items.update((item["id"], item) for item in patch[added])
        return {**document, member: list(items.values())}

    return apply


def _drop(member: str) -> Callable[[Document, Mapping[str, Any]], Document]:
    """Remove items by id; ids that are not there are passed over."""

    def apply(document: Document, patch: Mapping[str, Any]) -> Document:
        if member not in document:
            return document
        return {**document, member: [item for item in document[member] if item["id"] not in patch["ids"]]}

    return apply


def _add_names(document: Document, patch: Mapping[str, Any]) -> Document:
    names = dict.fromkeys([*document.get("alsoKnownAs", []), *patch["uris"]])
    return {**document, "alsoKnownAs": list(names)}


def _remove_names(document: Document, patch: Mapping[str, Any]) -> Document:
    return {**document, "alsoKnownAs": [n for n in document.get("alsoKnownAs", []) if n not in patch["uris"]]}


_CHECKS: dict[str, tuple[str, Callable[[object], None]]] = {
    REPLACE: ("document", _check_document),
    ADD_KEYS: ("publicKeys", _check_keys),
    REMOVE_KEYS: ("ids", _check_id_list),
    ADD_SERVICES: ("services", _check_services),
    REMOVE_SERVICES: ("ids", _check_id_list),
    ADD_NAMES: ("uris", _check_uris),
    REMOVE_NAMES: ("uris", _check_uris),
    JSON_PATCH: ("patches", lambda operations: check_json_patch(operations, PURPOSES)),
}
_PATCH_MEMBERS = {member: {"action", member} for member, _ in _CHECKS.values()}
_APPLIERS: dict[str, Callable[[Document, Mapping[str, Any]], Document]] = {
    REPLACE: lambda _document, patch: dict(patch["document"]),
    ADD_KEYS: _put("publicKeys", "publicKeys"),
    REMOVE_KEYS: _drop("publicKeys"),
    ADD_SERVICES: _put("services", "services"),
    REMOVE_SERVICES: _drop("services"),
    ADD_NAMES: _add_names,
    REMOVE_NAMES: _remove_names,
    JSON_PATCH: lambda document, patch: apply_json_patch(document, patch["patches"]),
}
