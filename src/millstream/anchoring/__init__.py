"""Event batches in content-addressed files, anchored in a hash-chained ledger, with a proof for every message.

The way of a batch: :func:`encode_batch` → :class:`BatchWriter` (prepare, write, anchor, observe, forget) →
:class:`Observer` → :func:`prove` → :func:`verify_proof`. Names are loaded when they are first used, so that checking a
proof does not load a database driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.anchor_replay import ReplayReport, replay
    from millstream.anchoring.batch_records import BatchHeader, EncodedBatch, encode_batch
    from millstream.anchoring.cas import Cas, MemoryCas
    from millstream.anchoring.cut_limits import CutLimits
    from millstream.anchoring.errors import (
        AnchoringError,
        NotAnchoredError,
        NotBatchedError,
        ObservationBlockedError,
        ProofError,
    )
    from millstream.anchoring.index import AnchorIndex
    from millstream.anchoring.journal import BatchJournal
    from millstream.anchoring.ledger import Ledger, LedgerEntry, MemoryLedger
    from millstream.anchoring.local_cas import LocalCas
    from millstream.anchoring.log_ledger import LedgerRepair, LogLedger
    from millstream.anchoring.observer import Observer
    from millstream.anchoring.proof import Replica, VerifiedProof, verify_proof
    from millstream.anchoring.prover import prove
    from millstream.anchoring.states import BatchState, BatchStatus
    from millstream.anchoring.store_cas import StoreBackedCas
    from millstream.anchoring.writer import BatchWriter

__all__ = [
    "AnchorIndex",
    "AnchoringError",
    "BatchHeader",
    "BatchJournal",
    "BatchState",
    "BatchStatus",
    "BatchWriter",
    "Cas",
    "CutLimits",
    "EncodedBatch",
    "Ledger",
    "LedgerEntry",
    "LedgerRepair",
    "LocalCas",
    "LogLedger",
    "MemoryCas",
    "MemoryLedger",
    "NotAnchoredError",
    "NotBatchedError",
    "ObservationBlockedError",
    "Observer",
    "ProofError",
    "ReplayReport",
    "Replica",
    "StoreBackedCas",
    "VerifiedProof",
    "encode_batch",
    "prove",
    "replay",
    "verify_proof",
]

__getattr__ = lazy_names(__name__)
