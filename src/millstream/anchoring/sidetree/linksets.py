"""Anchor linksets: Orb's description of an anchor, its predecessors and its witnesses (RFC 9264; Orb, "Anchor
Linkset").

::

    anchor linkset ─┬─ original   the core index file's hash, and every DID with the anchor before this one
                    ├─ related    URLs of those files
                    └─ replies    credentials with the proofs of witnesses

Each of the three is a document in a data URI, and each names the hash of the canonical *original*: so with the hash of
the anchor linkset one can verify the whole chain down to the batch files.
"""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.sidetree.batch_files import WrittenBatch, parse_anchor
from millstream.anchoring.sidetree.batch_reader import OperationBatch
from millstream.anchoring.sidetree.encoding import canonical, check_multihash, multihash_of
from millstream.anchoring.sidetree.errors import BatchFileError, RequestError
from millstream.anchoring.sidetree.gzip_json import compress, inflate, json_object
from millstream.anchoring.sidetree.hashlinks import HashLink, is_hashlink, link_to, parse_hashlink
from millstream.anchoring.sidetree.model import OperationType
from millstream.anchoring.sidetree.profile import Profile
from millstream.core.cid import CidError, digest_from_cid

ORB_PROFILE = "https://w3id.org/orb#v0"
UNPUBLISHED = "uAAA"
"""What stands in the DID of a create for the anchor that there is not yet (did:orb, "Method-Specific Identifier")."""

MAX_BYTES = 20_000_000
_PLAIN, _ZIPPED = "data:application/json,", "data:application/gzip;base64,"
_LINKSET, _CREDENTIAL = "application/linkset+json", "application/ld+json"

Object = dict[str, Any]


class PreviousAnchor(msgspec.Struct, frozen=True):
    """Of a DID before an operation: its last anchor, and the last one with its create or a recovery."""

    anchor: HashLink
    canonical: HashLink


class LinksetItem(msgspec.Struct, frozen=True):
    """A DID that was anchored; ``previous`` is its anchor before, without links, None for a create."""

    did: str
    previous: str | None


class Linkset(msgspec.Struct, frozen=True):
    """The content of an anchor linkset. The proofs in ``replies`` (credentials, as JSON values) were not verified."""

    author: str
    core_index: HashLink
    items: Sequence[LinksetItem]
    previous: Sequence[HashLink]
    replies: Sequence[Object]

    @property
    def anchor(self) -> str:
        """The anchor string that :func:`~millstream.anchoring.sidetree.read_batch` takes."""
        return f"{len(self.items)}.{self.core_index.bare}"


def write_linkset(
    batch: WrittenBatch | OperationBatch,
    anchor: str,
    previous: Mapping[str, PreviousAnchor],
    profile: Profile,
    *,
    author: str,
    links: Sequence[str] = (),
    replies: Sequence[Object] = (),
    zipped: bool = False,
) -> bytes:
    """The anchor linkset of *batch*, whose *anchor* string names its core index file by a raw CID or a hashlink.

    *previous* has every suffix of an operation that is not a create. *links* are URL prefixes of files, to which the
    multihash is added. With *zipped* the documents inside are compressed. The same arguments give the same bytes.
    Raises :class:`BatchFileError`.
    """
    core = _core_index(anchor, profile, links)
    items, up = list[Object](), dict[str, str]()
    for operation in batch.operations:
        if operation.type == OperationType.CREATE:
            items.append({"href": f"did:{profile.method}:{UNPUBLISHED}:{operation.suffix}"})
            continue
        if operation.suffix not in previous:
            raise BatchFileError(
                f"the previous anchor of the {operation.type} operation on {operation.suffix} is unknown"
            )
        before = previous[operation.suffix]
        did = f"did:{profile.method}:u{before.canonical.multihash}:{operation.suffix}"
        items.append({"href": did, "previous": [before.anchor.bare]})
        up[before.anchor.bare] = before.anchor.text
    common = {"author": [{"href": author}], "profile": [{"href": ORB_PROFILE}]}
    original = canonical({"linkset": [{"anchor": core.bare, "item": items, **common}]})
    name = link_to(original).bare
    related: Object = {"anchor": name, "profile": common["profile"], "via": [{"href": core.text}]}
    related |= {"up": [{"href": text} for text in up.values()]} if up else {}
    context: Object = {"anchor": name, **common, "original": [_embedded(original, _LINKSET, zipped=zipped)]}
    context["related"] = [_embedded(canonical({"linkset": [related]}), _LINKSET, zipped=zipped)]
    if replies:
        context["replies"] = [_embedded(canonical(reply), _CREDENTIAL, zipped=zipped) for reply in replies]
    return canonical({"linkset": [context]})


def read_linkset(data: bytes) -> Linkset:
    """The anchor linkset in *data*, its chain of hashes checked. Raises :class:`BatchFileError`.

    What a reader of the ledger still has to do: verify the proofs in the replies, and read the batch.
    """
    if len(data) > MAX_BYTES:
        raise BatchFileError(f"the anchor linkset is larger than the limit of {MAX_BYTES:,} bytes")
    context = _context(json_object(data, "anchor linkset"), "anchor linkset")
    text = _document(context, "original")
    value = json_object(text, "original")
    original, name = _context(value, "original"), link_to(_canonical(value)).bare
    if context.get("anchor") != name:
        raise BatchFileError(
            f"'anchor' of the anchor linkset is {str(context.get('anchor'))[:60]!r}, but the hash of its 'original' is "
            f"{name!r}: the linkset is damaged or was changed"
        )
    core = _hashlink(original.get("anchor"), "'anchor' of 'original'")
    items = [_item(item) for item in _list(original, "item")]
    related = _context(json_object(_document(context, "related"), "related document"), "related document")
    if related.get("anchor") != name:
        raise BatchFileError(
            f"'anchor' of the related document is {str(related.get('anchor'))[:60]!r}, but the hash of 'original' is "
            f"{name!r}: the linkset is damaged or was changed"
        )
    via = [_hashlink(href, "'via' of the related document") for href in _hrefs(related, "via")]
    up = [_hashlink(href, "'up' of the related document") for href in _hrefs(related, "up", required=False)]
    if [link.multihash for link in via] != [core.multihash]:
        raise BatchFileError(
            f"'via' of the related document must be one link, to the core index file {core.bare[:60]!r}"
        )
    different = {link.bare for link in up} ^ {item.previous for item in items if item.previous is not None}
    if different:
        raise BatchFileError(
            "'up' of the related document must list exactly the previous anchors of 'original', but only one of them "
            f"has {min(different)!r}"
        )
    replies = [_reply(reply, name, core) for reply in context.get("replies", [])]
    return Linkset(_hrefs(original, "author")[0], via[0], tuple(items), tuple(up), tuple(replies))


def _core_index(anchor: str, profile: Profile, links: Sequence[str]) -> HashLink:
    uri = parse_anchor(anchor, profile)[1]
    try:
        if is_hashlink(uri):
            return parse_hashlink(uri)
        multihash = multihash_of(digest_from_cid(uri))
        return HashLink(multihash, tuple(f"{prefix}u{multihash}" for prefix in links))
    except (CidError, RequestError) as error:
        raise BatchFileError(f"the files of an anchor linkset must be named by their SHA-256: {error}") from error


def _embedded(data: bytes, kind: str, *, zipped: bool) -> Object:
    if zipped:
        return {"href": _ZIPPED + base64.b64encode(compress(data)).decode("ascii"), "type": kind}
    return {"href": _PLAIN + urllib.parse.quote_plus(data.decode("utf-8"), safe=""), "type": kind}


def _document(context: Object, relation: str) -> bytes:
    return _opened(_hrefs(context, relation)[0], relation)


def _opened(href: str, relation: str) -> bytes:
    """The content of a data URI; no more than :data:`MAX_BYTES` are ever unpacked."""
    if href.startswith(_ZIPPED):
        try:
            packed = base64.b64decode(href.removeprefix(_ZIPPED), validate=True)
        except ValueError as error:
            raise BatchFileError(f"the {relation} link of the anchor linkset is not valid base64: {error}") from error
        return inflate(packed, f"{relation} of the anchor linkset", MAX_BYTES)
    if href.startswith(_PLAIN):
        return urllib.parse.unquote_plus(href.removeprefix(_PLAIN)).encode("utf-8", "surrogatepass")
    raise BatchFileError(f"the {relation} link of the anchor linkset must be a data URI of JSON, plain or gzip")


def _reply(value: object, name: str, core: HashLink) -> Object:
    href = value.get("href") if isinstance(value, dict) else None
    if not isinstance(href, str):
        raise BatchFileError("each of 'replies' of the anchor linkset must be a link: an object with 'href', a string")
    credential = json_object(_opened(href, "reply"), "reply")
    subject = credential.get("credentialSubject")
    found = subject if isinstance(subject, dict) else {}
    if (found.get("anchor"), found.get("href")) != (core.bare, name):
        raise BatchFileError(
            f"a reply in the anchor linkset has anchor {str(found.get('anchor'))[:60]!r} and href "
            f"{str(found.get('href'))[:60]!r}; expected: anchor {core.bare!r} and href {name!r}"
        )
    return credential


def _item(value: object) -> LinksetItem:
    did = value.get("href") if isinstance(value, dict) else None
    previous = value.get("previous", []) if isinstance(value, dict) else None
    if not isinstance(did, str) or not isinstance(previous, list) or len(previous) > 1:
        raise BatchFileError(
            "an item of 'original' must be an object with 'href', a DID, and optionally 'previous', a list of one link"
        )
    _ruled_suffix(did)
    return LinksetItem(did, _hashlink(previous[0], "'previous' of an item of 'original'").bare if previous else None)


def _ruled_suffix(did: str) -> None:
    try:
        check_multihash(did.rpartition(":")[2], "the suffix of the DID")
    except RequestError as error:
        raise BatchFileError(f"the item {did[:60]!r} of 'original' is not a DID: {error}") from error


def _hashlink(value: object, what: str) -> HashLink:
    try:
        return parse_hashlink(value if isinstance(value, str) else "")
    except RequestError as error:
        raise BatchFileError(f"{what} must be a hashlink: {error}") from error


def _context(value: Object, name: str) -> Object:
    contexts = value.get("linkset")
    if not isinstance(contexts, list) or len(contexts) != 1 or not isinstance(contexts[0], dict):
        raise BatchFileError(f"the {name} must be an object with 'linkset', a list of one link context (an object)")
    return contexts[0]


def _list(context: Object, name: str) -> list[Any]:
    value = context.get(name)
    if not isinstance(value, list) or not value:
        raise BatchFileError(f"{name!r} in the anchor linkset must be a list of at least one item")
    return value


def _hrefs(context: Object, name: str, *, required: bool = True) -> list[str]:
    if not required and name not in context:
        return []
    found = [link.get("href") if isinstance(link, dict) else None for link in _list(context, name)]
    if not all(isinstance(href, str) for href in found):
        raise BatchFileError(f"each {name!r} link of the anchor linkset must be an object with 'href', a string")
    return [str(href) for href in found]


def _canonical(value: Object) -> bytes:
    try:
        return canonical(value)
    except RequestError as error:
        raise BatchFileError(
            f"the 'original' of the anchor linkset cannot be written as canonical JSON: {error}"
        ) from error
