"""An operation as plain data: its type, and what it says."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.anchoring.sidetree.signatures import CompactJws

Object = Mapping[str, Any]


class OperationType(enum.StrEnum):
    """The four operations."""

    CREATE = "create"
    UPDATE = "update"
    RECOVER = "recover"
    DEACTIVATE = "deactivate"


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation on the DID of ``suffix``.

    ``suffix_data`` is that of a create. ``reveal_value`` and ``signed`` are those of the others. ``delta`` is None for
    a deactivate, and where an anchored delta is not available.
    """

    type: OperationType
    suffix: str
    delta: Object | None = None
    suffix_data: Object | None = None
    reveal_value: str = ""
    signed: CompactJws | None = None

    @property
    def key(self) -> Object:
        """The public key that signed it, out of the signed payload; not for a create."""
        return self.payload[KEY_MEMBERS[self.type]]  # type: ignore[no-any-return]

    @property
    def payload(self) -> Object:
        """The signed data; None for a create."""
        assert self.signed is not None, "a create has no signed data"
        return self.signed.payload

    @property
    def request(self) -> Object:
        """The operation as a client would send it."""
        if self.type == OperationType.CREATE:
            return {"type": "create", "suffixData": self.suffix_data, "delta": self.delta}
        signed = {"signedData": self.signed.text} if self.signed else {}
        head = {"type": self.type.value, "didSuffix": self.suffix, "revealValue": self.reveal_value}
        return {**head, **signed, **({"delta": self.delta} if self.type != OperationType.DEACTIVATE else {})}


KEY_MEMBERS: Mapping[OperationType, str] = {
    OperationType.UPDATE: "updateKey",
    OperationType.RECOVER: "recoveryKey",
    OperationType.DEACTIVATE: "recoveryKey",
}
"""Which member of the signed payload holds the public key."""
