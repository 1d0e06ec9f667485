"""A batch of operations as the five files (Sidetree v1.0, "File Structures"), and what an anchor says of them.

::

    anchor string ─▶ core index ─▶ core proof
                          └──────▶ provisional index ─▶ provisional proof
                                          └──────────▶ chunk
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.anchoring.sidetree.errors import BatchFileError, BatchTooLargeError, repeated
from millstream.anchoring.sidetree.gzip_json import UNIX, pack
from millstream.anchoring.sidetree.model import Operation, OperationType
from millstream.anchoring.sidetree.profile import Profile
from millstream.core.amounts import counted
from millstream.core.cid import CidForm, cid_of

CORE_INDEX, CORE_PROOF = "core index file", "core proof file"
PROVISIONAL_INDEX, PROVISIONAL_PROOF = "provisional index file", "provisional proof file"
CHUNK = "chunk file"

_ANCHOR_STRING = re.compile(r"([1-9][0-9]{0,8})\.([^.\s]+)")
_ORDER = (OperationType.CREATE, OperationType.RECOVER, OperationType.DEACTIVATE, OperationType.UPDATE)


class NamedFile(msgspec.Struct, frozen=True):
    """A file of a batch: which of the five it is, its name in content-addressed storage, and its bytes."""

    kind: str
    uri: str
    data: bytes


class WrittenBatch(msgspec.Struct, frozen=True):
    """A batch on its way: what goes into the ledger, the files behind it, and the operations in anchored order.

    ``cid`` is the form of the files' names.
    """

    anchor: str
    files: Sequence[NamedFile]
    operations: Sequence[Operation]
    cid: CidForm


def one_per_suffix(operations: Iterable[Operation]) -> tuple[list[Operation], list[Operation]]:
    """The first operation of every suffix, and all others: a batch holds one operation for a DID."""
    chosen, later = dict[str, Operation](), list[Operation]()
    for operation in operations:
        if chosen.setdefault(operation.suffix, operation) is not operation:
            later.append(operation)
    return list(chosen.values()), later


def write_batch(
    operations: Sequence[Operation], profile: Profile, *, lock: str | None = None, system: int = UNIX
) -> WrittenBatch:
    """The files of *operations*, at most one for a suffix, named by CIDs of the form that *profile* has.

    The same operations give the same bytes with the same zlib; *system* is in the headers of the files. *lock* is the
    writer's lock id, which is passed through. Raises :class:`BatchTooLargeError`, and :class:`BatchFileError` for a
    batch that no reader would take.
    """
    _check_batch(operations, profile)
    by_type = {kind: [o for o in operations if o.type == kind] for kind in _ORDER}
    files = list[NamedFile]()

    def add(kind: str, value: Any, limit: int) -> str:
        data = pack(value, kind, limit, profile.inflation, system=system)
        files.append(NamedFile(kind, cid_of(data, profile.cid), data))
        return files[-1].uri

    core: dict[str, Any] = {} if lock is None else {"writerLockId": lock}
    if len(by_type[OperationType.DEACTIVATE]) < len(operations):
        core["provisionalIndexFileUri"] = _add_provisional(by_type, profile, add)
    if by_type[OperationType.RECOVER] or by_type[OperationType.DEACTIVATE]:
        core["coreProofFileUri"] = add(CORE_PROOF, _core_proofs(by_type, profile), profile.max_proof_bytes)
    references = _core_references(by_type)
    core |= {"operations": references} if references else {}
    uri = add(CORE_INDEX, core, profile.max_core_index_bytes)
    ordered = [operation for kind in _ORDER for operation in by_type[kind]]
    return WrittenBatch(f"{len(operations)}.{uri}", tuple(files), tuple(ordered), profile.cid)


def parse_anchor(text: str, profile: Profile) -> tuple[int, str]:
    """The count and the URI of the core index file in an anchor string. Raises :class:`BatchFileError`."""
    match = _ANCHOR_STRING.fullmatch(text)
    if match is None:
        raise BatchFileError(f"invalid anchor string {text[:120]!r}: it must be <count>.<URI of the core index file>")
    if len(match[2]) > profile.max_uri_length:
        raise BatchFileError(
            f"the URI in the anchor string {text[:120]!r} has {len(match[2]):,} characters; the limit is "
            f"{profile.max_uri_length:,} characters"
        )
    if int(match[1]) > profile.max_operations:
        raise BatchFileError(
            f"the anchor string states {int(match[1]):,} operations; the limit of an anchor is "
            f"{counted(profile.max_operations, 'operation')}"
        )
    return int(match[1]), match[2]


def check_suffixes(suffixes: Sequence[str], count: int, name: str) -> None:
    """Refuse a batch, read as far as the file *name*, with two operations for a DID or more than *count*.

    Raises :class:`BatchFileError`.
    """
    if len(set(suffixes)) != len(suffixes):
        raise BatchFileError(
            f"the batch has two operations on the DID with the suffix {repeated(suffixes)!r} (found when the {name} "
            "was read); only one is allowed"
        )
    if len(suffixes) > count:
        raise BatchFileError(
            f"the batch has {counted(len(suffixes), 'operation')} or more (found when the {name} was read), but the "
            f"anchor string states {count:,}"
        )


def _check_batch(operations: Sequence[Operation], profile: Profile) -> None:
    if not operations:
        raise BatchFileError("a batch must have at least one operation")
    if len(operations) > profile.max_operations:
        raise BatchTooLargeError("batch", len(operations), profile.max_operations, "operations")
    suffixes = [operation.suffix for operation in operations]
    if len(set(suffixes)) != len(suffixes):
        raise BatchFileError(
            f"the batch has two operations on the DID with the suffix {repeated(suffixes)!r}: submit the second one in "
            "a later batch"
        )


def _add_provisional(
    by_type: dict[OperationType, list[Operation]], profile: Profile, add: Callable[[str, Any, int], str]
) -> str:
    with_delta = [o for kind in (OperationType.CREATE, OperationType.RECOVER) for o in by_type[kind]]
    updates = by_type[OperationType.UPDATE]
    chunk = add(CHUNK, {"deltas": [o.delta for o in [*with_delta, *updates]]}, profile.max_chunk_bytes)
    index: dict[str, Any] = {"chunks": [{"chunkFileUri": chunk}]}
    if updates:
        proofs = {"operations": {"update": _proofs(updates, profile)}}
        index["provisionalProofFileUri"] = add(PROVISIONAL_PROOF, proofs, profile.max_proof_bytes)
        index["operations"] = {"update": _references(updates)}
    return add(PROVISIONAL_INDEX, index, profile.max_provisional_index_bytes)


def _core_references(by_type: dict[OperationType, list[Operation]]) -> dict[str, Any]:
    lists = {
        "create": [{"suffixData": operation.suffix_data} for operation in by_type[OperationType.CREATE]],
        "recover": _references(by_type[OperationType.RECOVER]),
        "deactivate": _references(by_type[OperationType.DEACTIVATE]),
    }
    return {name: items for name, items in lists.items() if items}


def _core_proofs(by_type: dict[OperationType, list[Operation]], profile: Profile) -> dict[str, Any]:
    kinds = (OperationType.RECOVER, OperationType.DEACTIVATE)
    return {"operations": {kind.value: _proofs(by_type[kind], profile) for kind in kinds if by_type[kind]}}


def _references(operations: Iterable[Operation]) -> list[dict[str, str]]:
    return [{"didSuffix": o.suffix, "revealValue": o.reveal_value} for o in operations]


def _proofs(operations: Iterable[Operation], profile: Profile) -> list[Any]:
    texts = [operation.signed.text for operation in operations if operation.signed is not None]
    return texts if profile.bare_proofs else [{"signedData": text} for text in texts]
