"""The files of an anchored batch, judged as Sidetree's reference implementation judges them.

See :mod:`~millstream.anchoring.sidetree.reference_rules` for why. The names of members and the order of the checks
follow the specification; where a check looks odd, it is what the reference implementation does.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.sidetree import reference_rules as rules
from millstream.anchoring.sidetree.batch_files import (
    CHUNK,
    CORE_INDEX,
    CORE_PROOF,
    PROVISIONAL_INDEX,
    PROVISIONAL_PROOF,
    check_suffixes,
)
from millstream.anchoring.sidetree.encoding import canonical, hash_of, is_multihash
from millstream.anchoring.sidetree.errors import BatchFileError, Checked, RequestError, check_each
from millstream.anchoring.sidetree.javascript import stringify, utf16_length
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.profile import Profile
from millstream.anchoring.sidetree.reference_json import (
    InheritingObject,
    ReferenceJsonError,
    decode_json,
    decode_noting_prototypes,
    inherits,
    is_portable,
)
from millstream.anchoring.sidetree.signatures import CompactJws

Object = Mapping[str, Any]
Load = Callable[[str, str, int], bytes]
"""(URI, name of the file for errors, most bytes) → the compressed bytes. Raises :class:`BatchFileError`."""

_CREATE, _RECOVER, _DEACTIVATE, _UPDATE = (
    OperationType.CREATE,
    OperationType.RECOVER,
    OperationType.DEACTIVATE,
    OperationType.UPDATE,
)
_MISSING = object()
_FIRST_STEP = 512


class _Reference(msgspec.Struct, frozen=True):
    suffix: str
    reveal_value: str


class _Delta(msgspec.Struct, frozen=True):
    """A delta, and whether every parser reads it as it is written."""

    value: Object
    is_usual: bool


class VoidBatchError(BatchFileError):
    """The reference takes all files, but throws when it puts the operations together: none of them counts."""


class CoreFiles(msgspec.Struct, frozen=True):
    """What the core files hold: creates without deltas, recoveries and deactivations, and where the rest is.

    ``suffixes`` are those of all operations, in order. An operation that can have no effect is None.
    """

    creates: Sequence[Operation | None]
    recovers: Sequence[Operation | None]
    deactivates: Sequence[Operation | None]
    suffixes: Sequence[str]
    provisional_uri: str | None


class ReferenceReader:
    """Reads the files that *load* gives under the limits of *profile*."""

    def __init__(self, load: Load, profile: Profile) -> None:
        self._load = load
        self._profile = profile

    def core(self, uri: str, count: int) -> CoreFiles:
        """The core files behind *uri*, of at most *count* operations. Raises :class:`BatchFileError`."""
        try:
            return self._core(uri, count)
        except RequestError as error:
            raise BatchFileError(f"the core files are not valid: {error}") from error

    def complete(self, core: CoreFiles, count: int) -> Sequence[Operation]:
        """All operations that have an effect, in anchored order, with their deltas. Raises :class:`BatchFileError`."""
        try:
            return self._complete(core, count)
        except RequestError as error:
            raise BatchFileError(f"the provisional files are not valid: {error}") from error

    def _core(self, uri: str, count: int) -> CoreFiles:
        members = {"provisionalIndexFileUri", "coreProofFileUri", "operations", "writerLockId"}
        index = self._object(uri, CORE_INDEX, self._profile.max_core_index_bytes, members)
        self._check_lock(index)
        lists = rules.allow_members(
            index.get("operations", {}), {"create", "recover", "deactivate"}, f"'operations' of the {CORE_INDEX}"
        )
        created = _each(lists, "create", CORE_INDEX, _create)
        creates = [operation for _, operation in created]
        recovers = _each(lists, "recover", CORE_INDEX, _reference)
        deactivates = _each(lists, "deactivate", CORE_INDEX, _reference)
        suffixes = [*(suffix for suffix, _ in created), *(item.suffix for item in (*recovers, *deactivates))]
        check_suffixes(suffixes, count, CORE_INDEX)
        provisional = (
            self._uri(index, "provisionalIndexFileUri", CORE_INDEX) if "provisionalIndexFileUri" in index else None
        )
        if provisional is None and (creates or recovers):
            raise BatchFileError(
                f"the {CORE_INDEX} has create or recover operations, but no member 'provisionalIndexFileUri'"
            )
        proven = self._core_proofs(index, recovers, deactivates)
        return CoreFiles(creates, *proven, suffixes, provisional)

    def _complete(self, core: CoreFiles, count: int) -> Sequence[Operation]:
        if core.provisional_uri is None:
            return [operation for operation in core.deactivates if operation is not None]
        members = {"chunks", "operations", "provisionalProofFileUri"}
        limit = self._profile.max_provisional_index_bytes
        index = self._object(core.provisional_uri, PROVISIONAL_INDEX, limit, members)
        chunk = self._chunk_uri(index)
        updates = _update_references(index)
        check_suffixes([*core.suffixes, *(reference.suffix for reference in updates)], count, PROVISIONAL_INDEX)
        proven = self._update_proofs(index, updates)
        deltas = self._deltas(chunk, len(core.creates) + len(core.recovers) + len(updates))
        recovers_at, updates_at = len(core.creates), len(core.creates) + len(core.recovers)
        whole = [
            *_with_deltas(core.creates, deltas[:recovers_at], self._profile),
            *_with_deltas(core.recovers, deltas[recovers_at:updates_at], self._profile),
            *core.deactivates,
            *_with_deltas(proven, deltas[updates_at:], self._profile),
        ]
        return [operation for operation in whole if operation is not None]

    def _core_proofs(
        self, index: Object, recovers: Sequence[_Reference], deactivates: Sequence[_Reference]
    ) -> tuple[Sequence[Operation | None], Sequence[Operation | None]]:
        if not recovers and not deactivates:
            _require_absent(index, "coreProofFileUri", CORE_INDEX)
            return [], []
        limit = self._profile.max_proof_bytes
        uri = self._uri(index, "coreProofFileUri", CORE_INDEX)
        lists = self._proof_lists(uri, CORE_PROOF, limit, {"recover", "deactivate"})
        recover_proofs = _each(lists, "recover", CORE_PROOF, lambda item: _proof(item, _RECOVER, None))
        expected = itertools.chain((reference.suffix for reference in deactivates), itertools.repeat(_MISSING))
        deactivate_proofs = _each(
            lists, "deactivate", CORE_PROOF, lambda item: _proof(item, _DEACTIVATE, next(expected))
        )
        # The reference counts both kinds together.
        if len(recover_proofs) + len(deactivate_proofs) != len(recovers) + len(deactivates):
            raise BatchFileError(
                f"the {CORE_PROOF} has {len(recover_proofs) + len(deactivate_proofs):,} proofs for "
                f"{len(recovers) + len(deactivates):,} recover and deactivate operations"
            )
        return _proven(_RECOVER, recovers, recover_proofs), _proven(_DEACTIVATE, deactivates, deactivate_proofs)

    def _update_proofs(self, index: Object, updates: Sequence[_Reference]) -> Sequence[Operation | None]:
        if not updates:
            _require_absent(index, "provisionalProofFileUri", PROVISIONAL_INDEX)
            return []
        uri = self._uri(index, "provisionalProofFileUri", PROVISIONAL_INDEX)
        lists = self._proof_lists(uri, PROVISIONAL_PROOF, self._profile.max_proof_bytes, {"update"})
        proofs = _each(lists, "update", PROVISIONAL_PROOF, lambda item: _proof(item, _UPDATE, None))
        if len(proofs) != len(updates):
            raise BatchFileError(
                f"the {PROVISIONAL_PROOF} has {len(proofs):,} proofs for {len(updates):,} update operations"
            )
        return _proven(_UPDATE, updates, proofs)

    def _deltas(self, uri: str, count: int) -> Sequence[_Delta]:
        content, may_inherit = self._decoded(uri, CHUNK, self._profile.max_chunk_bytes)
        value: Any = _members(content, {"deltas"}, CHUNK).get("deltas")
        deltas = _array(value)
        checked = check_each(
            deltas,
            "deltas",
            CHUNK,
            lambda delta: _checked_delta(delta, self._profile, may_inherit=may_inherit),
        )
        if len(checked) != count:
            raise BatchFileError(
                f"the {CHUNK} must have one delta for each of {count:,} operations, but has {len(checked):,}"
            )
        if checked and not isinstance(value, list) and "slice" in value:
            raise VoidBatchError(f"'deltas' of the {CHUNK} must not have a member 'slice'")
        return checked

    def _check_lock(self, index: Object) -> None:
        lock = index.get("writerLockId", "")
        most = self._profile.max_writer_lock_bytes
        if not isinstance(lock, str) or len(lock.encode("utf-8", "surrogatepass")) > most:
            raise BatchFileError(f"'writerLockId' of the {CORE_INDEX} must be a string of at most {most:,} bytes")

    def _chunk_uri(self, index: Object) -> str:
        chunks = index.get("chunks")
        what = f"the item of 'chunks' in the {PROVISIONAL_INDEX}"
        if not isinstance(chunks, list) or len(chunks) != 1:
            raise BatchFileError(f"'chunks' of the {PROVISIONAL_INDEX} must be a list of exactly one object")
        chunk = rules.own_members(chunks[0], what)
        if len(chunk) != 1:
            raise BatchFileError(f"{what} must have exactly the member 'chunkFileUri'")
        return self._uri(chunk, "chunkFileUri", PROVISIONAL_INDEX)

    def _uri(self, owner: Object, member: str, name: str) -> str:
        uri, most = owner.get(member), self._profile.max_uri_length
        if not isinstance(uri, str) or utf16_length(uri) > most:
            raise BatchFileError(f"{member!r} of the {name} must be a URI of at most {most:,} characters")
        return uri

    def _proof_lists(self, uri: str, name: str, limit: int, kinds: set[str]) -> Object:
        """The lists of proofs in a file that may have other members too."""
        file = self._value(uri, name, limit)
        if not isinstance(file, dict) or "operations" not in file:
            raise BatchFileError(f"the {name} must be an object with the member 'operations'")
        return rules.allow_members(file["operations"], kinds, f"'operations' of the {name}")

    def _object(self, uri: str, name: str, limit: int, members: set[str]) -> Object:
        return _members(self._value(uri, name, limit), members, name)

    def _value(self, uri: str, name: str, limit: int) -> Any:
        return self._decoded(uri, name, limit)[0]

    def _decoded(self, uri: str, name: str, limit: int) -> tuple[Any, bool]:
        """The value in a file, and whether an object inside may have a prototype of its own."""
        text = _inflate(self._load(uri, name, limit), name, limit * self._profile.inflation)
        try:
            return decode_noting_prototypes(text)
        except ReferenceJsonError as error:
            raise BatchFileError(f"cannot read the {name}: {error}") from error


def _members(value: Any, members: set[str], name: str) -> Object:
    """The *members* of *value*, what the file *name* holds."""
    if not isinstance(value, dict | list):
        raise BatchFileError(f"the {name} must be a JSON object")
    return rules.allow_members(value, members, f"the {name}")


def _checked_delta(value: Any, profile: Profile, *, may_inherit: bool) -> _Delta:
    data = rules.check_delta(value, profile)
    return _Delta(value, is_portable(data) and not (may_inherit and inherits(value)))


def _create(item: object) -> tuple[str, Operation | None]:
    """The suffix of the create in *item*, and the create; None if it has no effect, as its own members do not do."""
    data = rules.check_suffix_data(rules.allow_members(item, {"suffixData"}, "a create operation").get("suffixData"))
    suffix = hash_of(data)
    try:
        own = rules.check_suffix_data(dict(data)) if isinstance(data, InheritingObject) else data
    except RequestError:
        return suffix, None
    return suffix, Operation(_CREATE, suffix, suffix_data=own)


def _array(value: Any) -> list[Any]:
    """The items of *value*, a list or an object that inherits from one."""
    items = value.as_array() if isinstance(value, InheritingObject) else value
    if not isinstance(items, list):
        raise BatchFileError(f"'deltas' of the {CHUNK} must be a list")
    return items


def _reference(item: object) -> _Reference:
    members = rules.allow_members(item, {"didSuffix", "revealValue"}, "an operation reference")
    suffix = rules.check_multihash(members.get("didSuffix"), "'didSuffix'")
    return _Reference(suffix, rules.check_multihash(members.get("revealValue"), "'revealValue'"))


def _update_references(index: Object) -> Sequence[_Reference]:
    if "operations" not in index:
        return []
    lists = rules.allow_members(index["operations"], {"update"}, f"'operations' of the {PROVISIONAL_INDEX}")
    if "update" not in lists:
        raise BatchFileError(f"'operations' of the {PROVISIONAL_INDEX} must have a list 'update'")
    return _each(lists, "update", PROVISIONAL_INDEX, _reference)


def _proof(item: object, kind: OperationType, suffix: object) -> CompactJws:
    what = f"a proof of {'an' if kind == _UPDATE else 'a'} {kind} operation"
    text = rules.allow_members(item, {"signedData"}, what).get("signedData")
    return rules.check_signed(kind, text, suffix, _MISSING)


def _proven(
    kind: OperationType, references: Sequence[_Reference], proofs: Sequence[CompactJws]
) -> Sequence[Operation | None]:
    """The referenced operations with the proofs at the same places; None for those that can have no effect.

    Such are one without a proof, and one whose suffix or reveal value no other hash can be equal to.
    """
    return [
        Operation(kind, reference.suffix, reveal_value=reference.reveal_value, signed=proofs[place])
        if place < len(proofs) and is_multihash(reference.suffix) and is_multihash(reference.reveal_value)
        else None
        for place, reference in enumerate(references)
    ]


def _with_deltas(
    operations: Sequence[Operation | None], deltas: Sequence[_Delta], profile: Profile
) -> list[Operation | None]:
    return [
        operation and _with_delta(operation, delta, profile)
        for operation, delta in zip(operations, deltas, strict=True)
    ]


def _with_delta(operation: Operation, delta: _Delta, profile: Profile) -> Operation | None:
    whole = msgspec.structs.replace(operation, delta=delta.value)
    return whole if delta.is_usual else as_applied(whole, profile)


def as_applied(operation: Operation, profile: Profile) -> Operation | None:
    """*operation* as it is when it is applied; None where it cannot be.

    The reference writes an operation down as JSON and reads it again, which it cannot where a number has an exponent.
    """
    if _is_usual(operation.delta, canonical(operation.delta)):
        return operation
    try:
        request = decode_json(stringify(operation.request, canonical=False))
    except ReferenceJsonError:
        return None
    delta = request.get("delta") if isinstance(request, dict) and len(request) == len(operation.request) else None
    try:
        rules.check_delta_members(delta, profile)
    except RequestError:
        # One without a delta that counts leaves an empty document, but for an update, which is passed over.
        delta = None
    return None if delta is None and operation.type == _UPDATE else msgspec.structs.replace(operation, delta=delta)


def _is_usual(delta: Any, data: bytes) -> bool:
    """Whether every parser reads *delta* as it is written; *data* is its canonical JSON."""
    return is_portable(data) and not inherits(delta)


def _items(lists: Object, kind: str, name: str) -> list[Any]:
    items = lists.get(kind, [])
    if not isinstance(items, list):
        raise BatchFileError(f"{kind!r} in 'operations' of the {name} must be a list")
    return items


def _each(lists: Object, kind: str, name: str, check: Callable[[Any], Checked]) -> list[Checked]:
    """What *check* makes of each item of the list *kind* in the operations of the file *name*."""
    return check_each(_items(lists, kind, name), f"operations.{kind}", name, check)


def _require_absent(index: Object, member: str, name: str) -> None:
    if member in index:
        raise BatchFileError(f"the {name} has the member {member!r}, but no operation that needs it")


def _inflate(data: bytes, name: str, limit: int) -> bytes:
    """What *data* (GZIP, one member or more) unpacks to in Node.js, at most *limit* bytes."""
    unpacked, at = bytearray(), 0
    while True:
        at = _inflate_member(data, at, name, limit, unpacked)
        if at == len(data) or data[at] == 0:  # zeros pad a file, anything else begins another member
            return bytes(unpacked)


def _inflate_member(data: bytes, at: int, name: str, limit: int, unpacked: bytearray) -> int:
    """Unpack the member of *data* that begins *at*; where it ends. A file may have a great many of them."""
    member, step = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), _FIRST_STEP
    while not member.eof:
        part = data[at : at + step]
        if not part:
            raise BatchFileError(f"the {name} is truncated")
        try:
            unpacked += member.decompress(part, limit + 1 - len(unpacked))
        except zlib.error as error:
            raise BatchFileError(f"cannot decompress the {name} as GZIP: {error}") from error
        if len(unpacked) > limit:
            raise BatchFileError(f"the {name} has more than {limit:,} bytes after decompression, its limit")
        at, step = at + len(part), step * 2
    return at - len(member.unused_data)
