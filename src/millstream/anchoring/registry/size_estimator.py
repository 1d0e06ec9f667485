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


class EstimatedSizes(msgspec.Struct, frozen=True):
    """Compressed bytes, estimated."""

    core_index: float = 0.0
    core_proof: float = 0.0
    provisional_index: float = 0.0
    provisional_proof: float = 0.0
    chunk: float = 0.0

    def with_operation(self, operation: Operation) -> EstimatedSizes:
        """The sizes with one more operation."""
        delta = 0.0 if operation.delta is None else len(canonical(operation.delta)) * _TEXT_RATIO
        proof = 0.0 if operation.signed is None else len(operation.signed.text) * _TEXT_RATIO
        if operation.type == OperationType.UPDATE:
            return self._plus(provisional_index=_REFERENCE_BYTES, provisional_proof=proof, chunk=delta)
        return self._plus(core_index=_REFERENCE_BYTES, core_proof=proof, chunk=delta)

    def fit(self, profile: Profile) -> bool:
        """Whether files of these sizes are allowed."""
        return (
            self.core_index <= profile.max_core_index_bytes
            and self.core_proof <= profile.max_proof_bytes
            and self.provisional_index <= profile.max_provisional_index_bytes
            and self.provisional_proof <= profile.max_proof_bytes
            and self.chunk <= profile.max_chunk_bytes
        )

    def _plus(self, **more: float) -> EstimatedSizes:
        return msgspec.structs.replace(self, **{name: getattr(self, name) + value for name, value in more.items()})


def count_that_fits(operations: Sequence[Operation], profile: Profile) -> int:
    """How many of *operations*, from the first on, one batch is estimated to hold; at least one."""
    sizes = EstimatedSizes()
    for count, operation in enumerate(operations[: profile.max_operations]):
        sizes = sizes.with_operation(operation)
        if not sizes.fit(profile):
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
