"""How many operations fit into one batch: by count, and by the bytes that the five files are going to have."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.anchoring.sidetree import (
    BatchTooLargeError,
    Operation,
    OperationType,
    Profile,
    WrittenBatch,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import canonical

_REFERENCE_BYTES = 72  # a reference or suffix data in an index file: 694 kB for 10,000 creates
_TEXT_RATIO = 0.5  # base64url and JSON under GZIP: 0.47 for signatures, 0.45 for deltas, measured
_MARGIN = 0.97


class EstimatedSizes(msgspec.Struct):
    """Compressed bytes, estimated."""

    core_index: float = 0.0
    core_proof: float = 0.0
    provisional_index: float = 0.0
    provisional_proof: float = 0.0
    chunk: float = 0.0

    def add(self, operation: Operation) -> None:
        """Count one more operation: each file grows by at most half of the bytes of its request."""
        proof = 0.0 if operation.signed is None else len(operation.signed.text) * _TEXT_RATIO
        self.chunk += 0.0 if operation.delta is None else len(canonical(operation.delta)) * _TEXT_RATIO
        if operation.type == OperationType.UPDATE:
            self.provisional_index += _REFERENCE_BYTES
            self.provisional_proof += proof
        else:
            self.core_index += _REFERENCE_BYTES
            self.core_proof += proof

    def left(self, profile: Profile) -> float:
        """The bytes by which each of the files may still grow; negative where one is too large."""
        return min(
            profile.max_core_index_bytes - self.core_index,
            profile.max_proof_bytes - self.core_proof,
            profile.max_provisional_index_bytes - self.provisional_index,
            profile.max_proof_bytes - self.provisional_proof,
            profile.max_chunk_bytes - self.chunk,
        )


def bytes_that_fit(operations: Sequence[Operation], profile: Profile) -> int:
    """How many bytes of requests one batch is estimated to hold at least beside those of *operations*."""
    sizes = EstimatedSizes()
    for operation in operations:
        sizes.add(operation)
    return max(0, int(sizes.left(profile) / _TEXT_RATIO))


def count_that_fits(operations: Sequence[Operation], profile: Profile) -> int:
    """How many of *operations*, from the first on, one batch is estimated to hold; at least one."""
    sizes = EstimatedSizes()
    for count, operation in enumerate(operations[: profile.max_operations]):
        sizes.add(operation)
        if sizes.left(profile) < 0:
            return max(count, 1)
    return min(len(operations), profile.max_operations)


def write_largest_batch(operations: Sequence[Operation], profile: Profile) -> WrittenBatch:
    """The batch of as many of *operations*, from the first on, as really fit.

    Raises :class:`BatchTooLargeError` where not even the first one does.
    """
    count = count_that_fits(operations, profile)
    while True:
        try:
            return write_batch(operations[:count], profile)
        except BatchTooLargeError as error:
            if count == 1:
                raise
            count = max(1, min(count - 1, int(count * error.limit / error.size * _MARGIN)))
