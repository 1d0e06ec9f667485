"""Event batches in content-addressed files, anchored in a hash-chained ledger, with a proof for every message.

The road of a batch: :func:`encode_batch` → :class:`BatchWriter` (prepare, write, anchor, observe, forget) →
:class:`Observer` → :func:`prove` → :func:`verify_proof`. Names are loaded when they are first used, so that checking a
proof does not load a database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.anchoring.cas import Cas, MemoryCas
    from millstream.anchoring.errors import AnchoringError
    from millstream.anchoring.local_cas import LocalCas
    from millstream.anchoring.records import BatchHeader, EncodedBatch, encode_batch

_HOMES = {
    "AnchoringError": "errors",
    "BatchHeader": "records",
    "Cas": "cas",
    "EncodedBatch": "records",
    "LocalCas": "local_cas",
    "MemoryCas": "cas",
    "encode_batch": "records",
}

__all__ = [
    "AnchoringError",
    "BatchHeader",
    "Cas",
    "EncodedBatch",
    "LocalCas",
    "MemoryCas",
    "encode_batch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
