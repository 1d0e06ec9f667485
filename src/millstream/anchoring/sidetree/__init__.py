"""The Sidetree v1.0 protocol: operations on decentralized identifiers, their batch files, and their resolution.

All of it is pure: bytes and plain values in, bytes and plain values out. A batch goes
:func:`parse_request` → :func:`write_batch` → (content-addressed storage, ledger) → :func:`read_batch` →
:func:`resolve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.sidetree.batch_files import NamedFile, WrittenBatch, one_per_suffix, write_batch
    from millstream.anchoring.sidetree.batch_reader import OperationBatch, ReadBatch, read_batch, read_written
    from millstream.anchoring.sidetree.did import Did, created, long_form, parse_did, resolution
    from millstream.anchoring.sidetree.errors import BatchFileError, BatchTooLargeError, RequestError, SidetreeError
    from millstream.anchoring.sidetree.keys import PrivateKey
    from millstream.anchoring.sidetree.model import Operation, OperationType
    from millstream.anchoring.sidetree.operations import parse_request
    from millstream.anchoring.sidetree.profile import ORB, PROFILES, SIDETREE, Profile
    from millstream.anchoring.sidetree.requests import (
        create_request,
        deactivate_request,
        recover_request,
        update_request,
    )
    from millstream.anchoring.sidetree.resolver import (
        AnchoredOperation,
        Chain,
        DidState,
        OperationOutcome,
        apply,
        chain_of,
        resolve,
    )

__all__ = [
    "ORB",
    "PROFILES",
    "SIDETREE",
    "AnchoredOperation",
    "BatchFileError",
    "BatchTooLargeError",
    "Chain",
    "Did",
    "DidState",
    "NamedFile",
    "Operation",
    "OperationBatch",
    "OperationOutcome",
    "OperationType",
    "PrivateKey",
    "Profile",
    "ReadBatch",
    "RequestError",
    "SidetreeError",
    "WrittenBatch",
    "apply",
    "chain_of",
    "create_request",
    "created",
    "deactivate_request",
    "long_form",
    "one_per_suffix",
    "parse_did",
    "parse_request",
    "read_batch",
    "read_written",
    "recover_request",
    "resolution",
    "resolve",
    "update_request",
    "write_batch",
]

__getattr__ = lazy_names(__name__)
