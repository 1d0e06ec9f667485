"""The signer of the checkpoints of one ledger, as the durable tree uses it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class TreeHead(msgspec.Struct, frozen=True):
    """The content of a checkpoint: the tree of *origin* with ``size`` leaves has this ``root`` (32 bytes)."""

    origin: str
    size: int
    root: bytes


class CheckpointSigner(Protocol):
    """Makes and reads the checkpoints (signed notes) of one ledger. Thread-safe."""

    @property
    def origin(self) -> str:
        """The first line of every checkpoint of this ledger."""
        ...

    def sign(self, size: int, root: bytes) -> bytes:
        """The checkpoint of the tree of *size* leaves with *root*, signed with each key that signs now.

        It is called inside the transaction that keeps the checkpoint, and must not use the node's database.
        """
        ...

    def read(self, checkpoint: bytes, place: str = "") -> TreeHead:
        """What a checkpoint of this ledger says, once its signature was checked.

        *place* is the folder or space outside the node that has it; by default the node's database has it. Raises
        :class:`LedgerError`, which names the place and says what to do.
        """
        ...

    def is_current(self, checkpoint: bytes) -> bool:
        """Whether *checkpoint* has the signatures of all current keys; if not, it is signed again."""
        ...
