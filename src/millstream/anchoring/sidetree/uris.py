"""URIs as the library of Sidetree's reference implementation judges them (uri-js 4.4)."""

from __future__ import annotations

import re

from millstream.anchoring.sidetree.errors import RequestError

# Any text matches, and only the schemes below can be wrong.
_URI = re.compile(
    r"(?:([^:/?#]+):)?(?://((?:[^/?#@]*@)?(\[[^/?#\]]+\]|[^/?#:]*)(?::[0-9]*)?))?([^?#]*)(?:\?([^#]*))?(?:#.*)?",
    re.DOTALL,
)
_USUAL = re.compile(r"https?://[A-Za-z0-9][^/?#@]*(?:[/?#]|\Z)")  # what stands before an '@' is no host
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ENCODED_UNRESERVED = re.compile(r"%(2[dDeE]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe])")


def check_uri(text: str) -> None:
    """*text*, which must be what the library of the reference implementation takes for a URI reference.

    Raises :class:`RequestError`.
    """
    if _USUAL.match(text):
        return
    found = _URI.match(text)
    assert found is not None, "the pattern matches any text"
    scheme, host, path, query = (found[1] or "").lower(), found[3] or "", found[4], found[5] or ""
    if scheme in ("http", "https") and not host:
        raise _wrong(f"serviceEndpoint {text[:60]!r} has no host")
    if scheme == "mailto":
        _check_mailto(path, _decoded(query), text)
    if scheme == "urn":
        _check_urn(path, text)


def _check_mailto(path: str, query: str, text: str) -> None:
    addresses = path.split(",") if path else []
    for field in query.split("&") if query else ():
        name, equals, value = field.partition("=")
        if name == "to":
            addresses += value.split("=")[0].split(",") if equals else [""]
    if not all("@" in address for address in addresses):
        raise _wrong(f"serviceEndpoint {text[:60]!r}: each address of a mailto: URI must have an '@'")


def _check_urn(path: str, text: str) -> None:
    namespace, colon, name = _decoded(path).partition(":")
    if not namespace or not colon:
        raise _wrong(f"serviceEndpoint {text[:60]!r}: a urn: URI must have a namespace and a name")
    if namespace.lower() == "uuid" and _UUID.fullmatch(name) is None:
        raise _wrong(f"serviceEndpoint {text[:60]!r}: a urn:uuid: URI must contain a valid UUID")


def _decoded(text: str) -> str:
    """*text* with the characters that need no percent-encoding decoded."""
    return _ENCODED_UNRESERVED.sub(lambda found: chr(int(found[1], 16)), text)


def _wrong(text: str) -> RequestError:
    return RequestError("patch_invalid", text)
