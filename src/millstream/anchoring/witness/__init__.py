"""Witnesses (c2sp.org/tlog-witness): servers that cosign a ledger's checkpoint only if it extends the last one.

``Witness`` is the server's part, for ledgers of others; ``WitnessClient`` asks one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.witness.client import Cosigned, WitnessClient
    from millstream.anchoring.witness.requests import AddCheckpoint
    from millstream.anchoring.witness.state import WitnessState
    from millstream.anchoring.witness.witness import Witness, WitnessResponse
    from millstream.anchoring.witness.witness_key import WitnessKey

__all__ = [
    "AddCheckpoint",
    "Cosigned",
    "Witness",
    "WitnessClient",
    "WitnessKey",
    "WitnessResponse",
    "WitnessState",
]

__getattr__ = lazy_names(__name__)
