"""An anchored batch, read back from content-addressed storage and checked by every rule of a reader.

The core files are taken whole or not at all. Where the provisional part is bad, the operations of the core files stay,
without their deltas: a recovery still counts when its data was pruned or never good (Sidetree v1.0, "Transaction &
Operation Processing"). They also stay while the provisional part is not available.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.anchoring.errors import CasError, CasTooLargeError
from millstream.anchoring.sidetree.batch_files import (
    CHUNK,
    CORE_INDEX,
    CORE_PROOF,
    PROVISIONAL_INDEX,
    PROVISIONAL_PROOF,
    WrittenBatch,
    check_suffixes,
    parse_anchor,
)
from millstream.anchoring.sidetree.encoding import hash_of
from millstream.anchoring.sidetree.errors import BatchFileError, RequestError, check_each, unknown_members
from millstream.anchoring.sidetree.gzip_json import unpack
from millstream.anchoring.sidetree.hashlinks import is_hashlink, parse_hashlink
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.operations import (
    check_delta,
    check_reference,
    check_signed,
    check_suffix_data,
    time_window_fault,
)
from millstream.anchoring.sidetree.profile import Profile
from millstream.anchoring.sidetree.reference_reader import ReferenceReader, VoidBatchError
from millstream.core.cid import CidError

Fetch = Callable[[str, int], bytes]
"""(URI, most bytes) → the bytes, verified against the URI; raises the errors of :class:`millstream.anchoring.Cas`."""

_CORE_TYPES = (OperationType.CREATE, OperationType.RECOVER, OperationType.DEACTIVATE)


class OperationBatch(msgspec.Struct, frozen=True):
    """What an anchor stands for: its operations in anchored order, and why the provisional part was refused, if it was.

    ``count`` is what the anchor says; there may be fewer operations, and with a refused part there are. ``unavailable``
    is why the provisional files cannot be read now, if they cannot.
    """

    count: int
    operations: Sequence[Operation]
    fault: str | None = None
    unavailable: CasError | None = None


class ReadBatch(msgspec.Struct, frozen=True):
    """The *batch* that readers make of *anchor* under *profile*, and the *files* for it: their CIDs, and the most bytes
    of each. As those name their contents, nobody can make another batch of them.
    """

    anchor: str
    profile: Profile
    files: Sequence[tuple[str, int]]
    batch: OperationBatch


class _CoreContent(msgspec.Struct, frozen=True):
    operations: Sequence[Operation]
    provisional_uri: str | None


def read_batch(
    anchor: str,
    fetch: Fetch,
    profile: Profile,
    *,
    time: int | None = None,
    partial: bool = False,
    known: ReadBatch | None = None,
) -> OperationBatch:
    """The batch behind the *anchor* string.

    With the *time* of the anchor (microseconds), operations whose window it misses are left out. With *partial* a batch
    whose provisional files are unavailable has the operations that count without them until then. If the batch is
    *known*, its files are fetched, but not parsed again.

    Raises :class:`BatchFileError` where the whole batch is to be dropped. A file that is missing or
    unavailable (:class:`CasNotFoundError`, :class:`CasDamagedError`, :class:`CasUnavailableError`) is not a verdict:
    try again later.
    """
    batch = _known(anchor, fetch, profile, known) or _read(anchor, fetch, profile)
    if batch.unavailable is not None and not partial:
        raise batch.unavailable
    if time is None:
        return batch
    in_time = [operation for operation in batch.operations if time_window_fault(operation, profile, time) is None]
    return batch if len(in_time) == len(batch.operations) else msgspec.structs.replace(batch, operations=in_time)


def read_written(batch: WrittenBatch, profile: Profile) -> ReadBatch:
    """*batch* as readers take it. Raises :class:`BatchFileError` where they would refuse a part of it."""
    content, files = {file.uri: file.data for file in batch.files}, list[tuple[str, int]]()

    def fetch(uri: str, limit: int) -> bytes:
        files.append((uri, limit))
        return content[uri]

    found = _read(batch.anchor, fetch, profile)
    if found.fault is not None:
        raise BatchFileError(found.fault)
    if len(found.operations) != len(batch.operations):
        raise BatchFileError("readers skip an operation")
    return ReadBatch(batch.anchor, profile, tuple(files), found)


def _known(anchor: str, fetch: Fetch, profile: Profile, known: ReadBatch | None) -> OperationBatch | None:
    """The *known* batch, if it is that of *anchor* and all of its files are there."""
    if known is None or known.anchor != anchor or known.profile != profile:
        return None
    try:
        for uri, limit in known.files:
            fetch(uri, limit)
    except CasError:
        return None  # a part of it may be readable
    return known.batch


def _read(anchor: str, fetch: Fetch, profile: Profile) -> OperationBatch:
    count, uri = parse_anchor(anchor, profile)
    if profile.reference:
        return _read_as_reference(count, uri, fetch, profile)
    reader = _Reader(fetch, profile)
    core = reader.core(uri, count)
    if core.provisional_uri is None:
        return _whole(count, core.operations, profile)
    try:
        deltas, updates = reader.provisional(core, count)
        return _whole(count, _with_deltas(core.operations, deltas, updates), profile)
    except BatchFileError as error:
        if profile.all_or_nothing:
            raise
        return OperationBatch(count, tuple(core.operations), str(error))
    except CasError as error:
        if profile.all_or_nothing:
            raise
        return OperationBatch(count, tuple(core.operations), unavailable=error)


def _read_as_reference(count: int, uri: str, fetch: Fetch, profile: Profile) -> OperationBatch:
    reader = ReferenceReader(functools.partial(_load, fetch, profile), profile)
    core = reader.core(uri, count)
    # A create without its delta is passed over when it is applied.
    kept = tuple(operation for operation in (*core.recovers, *core.deactivates) if operation is not None)
    try:
        return OperationBatch(count, tuple(reader.complete(core, count)))
    except VoidBatchError:
        raise
    except BatchFileError as error:
        return OperationBatch(count, kept, str(error))
    except CasError as error:
        return OperationBatch(count, kept, unavailable=error)


def _load(fetch: Fetch, profile: Profile, uri: str, name: str, limit: int) -> bytes:
    """The file *name* behind *uri*, of at most *limit* bytes. Raises :class:`BatchFileError`."""
    try:
        data = fetch(_cid(uri, profile), limit)
    except CasTooLargeError as error:
        raise BatchFileError(f"the {name} is larger than the limit of {limit:,} bytes") from error
    except CidError as error:
        raise BatchFileError(f"invalid URI of the {name}: {error}") from error
    if len(data) > limit:
        raise BatchFileError(f"the {name} is larger than the limit of {limit:,} bytes")
    return data


def _cid(uri: str, profile: Profile) -> str:
    """The CID in *uri*, which may be a hashlink where the network has them. Raises :class:`BatchFileError`."""
    if not profile.hashlinks or not is_hashlink(uri):
        return uri
    try:
        return parse_hashlink(uri).cid
    except RequestError as error:
        raise BatchFileError(str(error)) from error


def _whole(count: int, operations: Sequence[Operation], profile: Profile) -> OperationBatch:
    if profile.exact_count and len(operations) != count:
        raise BatchFileError(
            f"the anchor string states {count:,} operations, but the files contain {len(operations):,}"
        )
    return OperationBatch(count, tuple(operations))


def _with_deltas(
    core: Sequence[Operation], deltas: Sequence[Mapping[str, Any]], updates: Sequence[Operation]
) -> list[Operation]:
    """Deltas stand in the order creates, recovers, updates; deactivates have none."""
    remaining = iter(deltas)
    return [
        operation
        if operation.type == OperationType.DEACTIVATE
        else msgspec.structs.replace(operation, delta=next(remaining))
        for operation in [*core, *updates]
    ]


class _Reader:
    def __init__(self, fetch: Fetch, profile: Profile) -> None:
        self._fetch = fetch
        self._profile = profile

    def core(self, uri: str, count: int) -> _CoreContent:
        profile = self._profile
        index = self._file(uri, CORE_INDEX, profile.max_core_index_bytes)
        self._allow(index, CORE_INDEX, {"provisionalIndexFileUri", "coreProofFileUri", "writerLockId", "operations"})
        self._check_lock(index)
        lists = self._lists(index.get("operations", {}), CORE_INDEX, [kind.value for kind in _CORE_TYPES])
        creates = check_each(lists["create"], "operations.create", CORE_INDEX, self._create)
        references = {
            kind: check_each(lists[kind.value], f"operations.{kind}", CORE_INDEX, self._reference)
            for kind in _CORE_TYPES[1:]
        }
        suffixes = [o.suffix for o in creates] + [suffix for kind in references for suffix, _ in references[kind]]
        check_suffixes(suffixes, count, CORE_INDEX)
        proven = self._core_proofs(index, references)
        provisional = self._uri(
            index, "provisionalIndexFileUri", CORE_INDEX, required=bool(creates or lists["recover"])
        )
        if not suffixes and provisional is None:
            raise BatchFileError(f"the {CORE_INDEX} contains no operation")
        return _CoreContent([*creates, *proven], provisional)

    def provisional(self, core: _CoreContent, count: int) -> tuple[Sequence[Mapping[str, Any]], Sequence[Operation]]:
        assert core.provisional_uri is not None
        index = self._file(core.provisional_uri, PROVISIONAL_INDEX, self._profile.max_provisional_index_bytes)
        self._allow(index, PROVISIONAL_INDEX, {"chunks", "provisionalProofFileUri", "operations"})
        lists = self._lists(index.get("operations", {}), PROVISIONAL_INDEX, ["update"])
        references = check_each(lists["update"], "operations.update", PROVISIONAL_INDEX, self._reference)
        suffixes = [o.suffix for o in core.operations] + [suffix for suffix, _ in references]
        check_suffixes(suffixes, count, PROVISIONAL_INDEX)
        updates = self._update_proofs(index, references)
        with_delta = sum(o.type != OperationType.DEACTIVATE for o in core.operations) + len(updates)
        return self._deltas(index, with_delta), updates

    def _core_proofs(
        self, index: Mapping[str, Any], references: Mapping[OperationType, list[tuple[str, str]]]
    ) -> list[Operation]:
        needed = any(references.values())
        uri = self._uri(index, "coreProofFileUri", CORE_INDEX, required=needed, allowed=needed)
        if uri is None:
            return []
        file = self._file(uri, CORE_PROOF, self._profile.max_proof_bytes)
        return self._proven(file, CORE_PROOF, references)

    def _update_proofs(self, index: Mapping[str, Any], references: list[tuple[str, str]]) -> list[Operation]:
        needed = bool(references)
        uri = self._uri(index, "provisionalProofFileUri", PROVISIONAL_INDEX, required=needed, allowed=needed)
        if uri is None:
            return []
        file = self._file(uri, PROVISIONAL_PROOF, self._profile.max_proof_bytes)
        return self._proven(file, PROVISIONAL_PROOF, {OperationType.UPDATE: references})

    def _proven(
        self, file: Mapping[str, Any], name: str, references: Mapping[OperationType, list[tuple[str, str]]]
    ) -> list[Operation]:
        """The referenced operations with their signed data: one proof for each, in the same order."""
        self._allow(file, name, {"operations"})
        lists = self._lists(file.get("operations"), name, [kind.value for kind in references])
        operations = list[Operation]()
        for kind, pairs in references.items():
            proofs = lists[kind.value]
            if len(proofs) != len(pairs):
                raise BatchFileError(f"the {name} has {len(proofs):,} proofs for {len(pairs):,} {kind} operations")
            operations += check_each(
                zip(pairs, proofs, strict=True), f"operations.{kind}", name, functools.partial(self._operation, kind)
            )
        return operations

    def _operation(self, kind: OperationType, proven: tuple[tuple[str, str], object]) -> Operation:
        """The operation of a reference and its proof."""
        (suffix, reveal_value), proof = proven
        if not self._profile.bare_proofs:
            if not isinstance(proof, dict) or "signedData" not in proof:
                raise BatchFileError("a proof must be an object with the member 'signedData'")
            self._allow(proof, "proof", {"signedData"})
            proof = proof["signedData"]
        signed = check_signed(kind, proof, self._profile, suffix)
        return Operation(kind, suffix, reveal_value=reveal_value, signed=signed)

    def _deltas(self, index: Mapping[str, Any], count: int) -> Sequence[Mapping[str, Any]]:
        chunks = index.get("chunks")
        if not isinstance(chunks, list) or len(chunks) != 1 or not isinstance(chunks[0], dict):
            raise BatchFileError(f"'chunks' of the {PROVISIONAL_INDEX} must be a list of exactly one object")
        self._allow(chunks[0], f"item of 'chunks' in the {PROVISIONAL_INDEX}", {"chunkFileUri"})
        uri = self._uri(chunks[0], "chunkFileUri", PROVISIONAL_INDEX, required=True)
        file = self._file(str(uri), CHUNK, self._profile.max_chunk_bytes)
        self._allow(file, CHUNK, {"deltas"})
        deltas = file.get("deltas")
        if not isinstance(deltas, list) or len(deltas) != count:
            raise BatchFileError(
                f"'deltas' of the {CHUNK} must be a list with one delta for each of {count:,} operations"
            )
        return check_each(deltas, "deltas", CHUNK, lambda delta: check_delta(delta, self._profile))

    def _create(self, item: object) -> Operation:
        if not isinstance(item, dict) or "suffixData" not in item:
            raise BatchFileError("a create operation must be an object with the member 'suffixData'")
        self._allow(item, "create operation", {"suffixData"})
        suffix_data = check_suffix_data(item["suffixData"], self._profile)
        return Operation(OperationType.CREATE, hash_of(suffix_data), suffix_data=suffix_data)

    def _reference(self, item: object) -> tuple[str, str]:
        if isinstance(item, dict):
            self._allow(item, "operation reference", {"didSuffix", "revealValue"})
        return check_reference(item)

    def _check_lock(self, index: Mapping[str, Any]) -> None:
        lock = index.get("writerLockId", "")
        if not isinstance(lock, str) or len(lock.encode()) > self._profile.max_writer_lock_bytes:
            limit = self._profile.max_writer_lock_bytes
            raise BatchFileError(f"'writerLockId' of the {CORE_INDEX} must be a string of at most {limit:,} bytes")

    def _lists(self, operations: object, name: str, kinds: Sequence[str]) -> dict[str, list[Any]]:
        if not isinstance(operations, dict):
            raise BatchFileError(f"'operations' of the {name} must be an object")
        self._allow(operations, f"object 'operations' of the {name}", set(kinds))
        lists = {kind: operations.get(kind, []) for kind in kinds}
        for kind, items in lists.items():
            if not isinstance(items, list):
                raise BatchFileError(f"{kind!r} in 'operations' of the {name} must be a list")
        return lists

    def _uri(
        self, owner: Mapping[str, Any], member: str, name: str, *, required: bool, allowed: bool = True
    ) -> str | None:
        uri = owner.get(member)
        if uri is None and not required and member not in owner:
            return None
        if not allowed:
            raise BatchFileError(
                f"the {name} has the member {member!r}, but no operation that needs it: remove the member"
            )
        if not isinstance(uri, str) or not 0 < len(uri) <= self._profile.max_uri_length:
            limit = self._profile.max_uri_length
            raise BatchFileError(f"{member!r} of the {name} must be a URI of 1 to {limit:,} characters")
        return uri

    def _allow(self, value: Mapping[str, Any], name: str, members: set[str]) -> None:
        unknown = set(value) - members
        if unknown and not self._profile.ignore_unknown:
            raise BatchFileError(f"the {name} {unknown_members(unknown, members)}")

    def _file(self, uri: str, name: str, limit: int) -> dict[str, Any]:
        data = _load(self._fetch, self._profile, uri, name, limit)
        return unpack(data, name, limit, self._profile.inflation)
