"""Properties of an item as the user metadata of an S3 object, and back.

User metadata travels in HTTP headers: names lose their case, values are short and plain ASCII, and servers differ in
what else they lose. What would survive everywhere is kept under its own name, for other tools to see; the rest is
packed as JSON (``docs/formats/s3-store.md``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from millstream.core.decoding import prepared
from millstream.stores.protocol import DamagedRecordError, StoreInputError

MAX_METADATA_BYTES = 2048
"""S3 keeps no more in the names and values of an object's user metadata."""

OWN = "millstream-"
SHA256 = "millstream-sha256"
PUT_ID = "millstream-put"
_PACKED = "millstream-properties-"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,98}[a-z0-9])?")
_PLAIN_VALUE = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")
_CHUNK = 240  # Swift keeps values of up to 256 bytes
_PLAIN_MANY = 40  # Swift keeps up to 90 values an object


class Metadata(msgspec.Struct, frozen=True):
    """What we keep with an object: the ``properties`` of the item, the ``sha256`` of its bytes, which put it was."""

    properties: Mapping[str, str]
    sha256: str | None = None
    put_id: str | None = None


def pack(metadata: Metadata) -> dict[str, str]:
    """*metadata* as user metadata of S3. Raises :class:`StoreInputError` where it is more than S3 keeps."""
    plain = {name: value for name, value in metadata.properties.items() if _is_plain(name, value)}
    if len(plain) > _PLAIN_MANY:
        plain = {}
    odd = {name: value for name, value in metadata.properties.items() if name not in plain}
    packed = plain | _pack(odd)
    if metadata.sha256:
        packed[SHA256] = metadata.sha256
    if metadata.put_id:
        packed[PUT_ID] = metadata.put_id
    size = sum(len(name) + len(value) for name, value in packed.items())
    if size > MAX_METADATA_BYTES:
        raise StoreInputError(
            f"the properties and the checksum need {size:,} bytes of user metadata, but the limit of S3 is "
            f"{MAX_METADATA_BYTES:,} bytes: shorten the properties, or put the longest into an item of its own"
        )
    return packed


def unpack(found: Mapping[str, str]) -> Metadata:
    """The meaning of the user metadata *found* on an object. Raises :class:`DamagedRecordError` if ours is damaged."""
    headers = lower_names(found)
    properties = {name: value for name, value in headers.items() if not name.startswith(OWN)}
    chunks = {name: value for name, value in headers.items() if name.startswith(_PACKED)}
    if chunks:
        properties |= _unpack(chunks)
    sha256 = headers.get(SHA256)
    if sha256 and _SHA256.fullmatch(sha256) is None:
        raise DamagedRecordError(
            f"the recorded SHA-256 of the object is damaged ({sha256[:100]!r}): put the item again from a good copy"
        )
    return Metadata(properties, sha256, headers.get(PUT_ID))


def lower_names(found: Mapping[str, str]) -> dict[str, str]:
    """*found* with names in lower case, as S3 sends them; servers and proxies may write names of headers otherwise."""
    return {name.lower(): value for name, value in found.items()}


def _is_plain(name: str, value: str) -> bool:
    plain = _PLAIN_NAME.fullmatch(name) and _PLAIN_VALUE.fullmatch(value)
    return bool(plain) and not name.startswith(OWN) and not value.startswith("=?")


def _pack(properties: Mapping[str, str]) -> dict[str, str]:
    if not properties:
        return {}
    text = json.dumps(dict(properties), sort_keys=True, separators=(",", ":")).replace(" ", "\\u0020")
    pieces = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    return {f"{_PACKED}{number}": piece for number, piece in enumerate(pieces)}


def _unpack(chunks: Mapping[str, str]) -> dict[str, str]:
    try:
        text = "".join(chunks[f"{_PACKED}{number}"] for number in range(len(chunks)))
        return msgspec.json.decode(text, type=prepared(dict[str, str]))
    except (KeyError, msgspec.DecodeError) as error:
        why = f"part {error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise DamagedRecordError(
            f"the packed properties of the object are damaged ({why}): put the item again from a good copy"
        ) from error
