"""How many operations fit into one batch: by count, and by the bytes that the five files are going to have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from millstream.anchoring.registry.states import ParsedOperation
from millstream.anchoring.sidetree import (
    BatchTooLargeError,
    Operation,
    OperationType,
    Profile,
    WrittenBatch,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import canonical
from millstream.anchoring.sidetree.operations import stored_operation
from millstream.core.decoding import prepared

_REFERENCE_BYTES = 72  # a reference or suffix data in an index file: 694 kB for 10,000 creates
_TEXT_RATIO = 0.5  # base64url and JSON under GZIP: 0.47 for signatures, 0.45 for deltas, measured
_MARGIN = 0.97


class _RequestParts(msgspec.Struct, frozen=True):
    """What of a request decides on the sizes of files."""

    type: str
    signedData: str = ""  # noqa: N815
    delta: msgspec.Raw = msgspec.Raw()


_parts = msgspec.json.Decoder(prepared(_RequestParts))


class EstimatedSizes(msgspec.Struct):
    """Compressed bytes, estimated."""

    core_index: float = 0.0
    core_proof: float = 0.0
    provisional_index: float = 0.0
    provisional_proof: float = 0.0
    chunk: float = 0.0

    def add(self, operation: Operation) -> None:
        """Count one more operation: each file grows by at most half of the bytes of its request."""
        signed = "" if operation.signed is None else operation.signed.text
        delta = b"" if operation.delta is None else canonical(operation.delta)
        self._add(operation.type, len(signed), len(delta))

    def add_request(self, data: bytes) -> None:
        """As :meth:`add`, for an operation whose canonical request is *data*; no more of it is read than needed."""
        try:
            parts = _parts.decode(data)
        except msgspec.DecodeError:  # text with a lone surrogate
            self.add(stored_operation(data, ""))
            return
        self._add(parts.type, len(parts.signedData), len(parts.delta))

    def _add(self, kind: str, signed: int, delta: int) -> None:
        """Count an operation *kind* with so many bytes of signed data and of its delta."""
        self.chunk += delta * _TEXT_RATIO
        if kind == OperationType.UPDATE:
            self.provisional_index += _REFERENCE_BYTES
            self.provisional_proof += signed * _TEXT_RATIO
        else:
            self.core_index += _REFERENCE_BYTES
            self.core_proof += signed * _TEXT_RATIO

    def add_unread(self, kind: str, count: int, request_bytes: int) -> None:
        """Count *count* more operations *kind*, whose requests have *request_bytes*: by at most so much files grow."""
        size = request_bytes * _TEXT_RATIO
        self.chunk += size
        if kind == OperationType.UPDATE:
            self.provisional_index += _REFERENCE_BYTES * count
            self.provisional_proof += size
        else:
            self.core_index += _REFERENCE_BYTES * count
            self.core_proof += 0.0 if kind == OperationType.CREATE else size

    def left(self, profile: Profile) -> float:
        """The bytes by which each of the files may still grow; negative where one is too large."""
        return min(
            profile.max_core_index_bytes - self.core_index,
            profile.max_proof_bytes - self.core_proof,
            profile.max_provisional_index_bytes - self.provisional_index,
            profile.max_proof_bytes - self.provisional_proof,
            profile.max_chunk_bytes - self.chunk,
        )


def estimate(requests: Iterable[bytes]) -> EstimatedSizes:
    """The sizes of the files of the operations whose canonical *requests* these are."""
    sizes = EstimatedSizes()
    for data in requests:
        sizes.add_request(data)
    return sizes


def count_that_fits(operations: Sequence[ParsedOperation], profile: Profile) -> int:
    """How many of *operations*, from the first on, one batch is estimated to hold; at least one."""
    operations = operations[: profile.max_operations]
    if _most(operations).left(profile) >= 0:
        return len(operations)
    sizes = EstimatedSizes()
    for count, each in enumerate(operations):
        sizes.add_request(each.queued.request)
        if sizes.left(profile) < 0:
            return max(count, 1)
    return len(operations)


def write_largest_batch(operations: Sequence[ParsedOperation], profile: Profile) -> WrittenBatch:
    """The batch of as many of *operations*, from the first on, as really fit.

    Raises :class:`BatchTooLargeError` where not even the first one does.
    """
    count = count_that_fits(operations, profile)
    while True:
        try:
            return write_batch([each.operation for each in operations[:count]], profile)
        except BatchTooLargeError as error:
            if count == 1:
                raise
            count = max(1, min(count - 1, int(count * error.limit / error.size * _MARGIN)))


def _most(operations: Sequence[ParsedOperation]) -> EstimatedSizes:
    """The most that the files of *operations* have, by the sizes of their requests alone."""
    sizes = EstimatedSizes()
    kinds = [each.queued.type for each in operations]
    for kind in set(kinds):
        lengths = [len(each.queued.request) for each in operations if each.queued.type == kind]
        sizes.add_unread(kind, len(lengths), sum(lengths))
    return sizes
