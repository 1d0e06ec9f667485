"""Proofs of single messages of a node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from millstream.anchoring import NotAnchoredError, NotBatchedError, Replica, prove
from millstream.anchoring.proof import Proof, decode_proof
from millstream.anchoring.transparency.entry_proof import EntryProof
from millstream.core.errors import MillstreamError
from millstream.core.message import encode_line
from millstream.log import LogSpec
from millstream.node.anchoring import AnchoringPart
from millstream.node.errors import UnknownMessageError
from millstream.node.ledgers import LedgersPart
from millstream.node.logs import LogsPart
from millstream.node.stores import StoresPart
from millstream.stores import CAS_SPACE


class ProofsPart:
    """Proves messages from the anchored files and their copies."""

    def __init__(self, logs: LogsPart, anchoring: AnchoringPart, stores: StoresPart, ledgers: LedgersPart) -> None:
        self._logs = logs
        self._anchoring = anchoring
        self._stores = stores
        self._ledgers = ledgers

    def prove(self, log: str, message_id: int, *, chain: bool = False, timestamps: bool = True) -> bytes:
        """The proof of one message, as canonical JSON; see :func:`millstream.anchoring.prove`.

        It ends with a signed checkpoint (version 2), with *chain* with all ledger entries up to the head (version 1).
        Where the ledger has time stamps the former has them, too (version 3), unless *timestamps* is False.

        Raises :class:`~millstream.log.LogNotFoundError`, :class:`UnknownMessageError` where it is not anchored because
        there is no such message, :class:`~millstream.anchoring.NotAnchoredError` where the log lost the anchored
        message and gave its id to another one.
        """
        anchoring = self._anchoring
        try:
            proof = prove(
                log,
                message_id,
                index=anchoring.observer.index,
                cas=anchoring.cas,
                ledger=anchoring.ledger,
                journal=anchoring.journal,
                replicas=self.replicas,
                prove_entry=None if chain else partial(self._prove_entry, timestamps=timestamps),
            )
        except NotBatchedError:
            self._require_message(log, message_id)
            raise
        self._refuse_other_message(log, message_id, proof)
        return proof

    def missing_cosignatures(self, proof: bytes) -> int:
        """How many more witnesses must sign the checkpoint of *proof* for the quorum; 0 without witnesses."""
        collector = self._ledgers.cosignatures.collector("anchors")
        found = decode_proof(proof)
        return collector.pending(found.checkpoint.encode()) if collector and isinstance(found, Proof) else 0

    def _prove_entry(self, number: int, *, timestamps: bool) -> EntryProof:
        signed = self._ledgers.signed("anchors")
        return (signed if timestamps else msgspec.structs.replace(signed, stamp=None)).prove_entry(number)

    def replicas(self, cid: str) -> Sequence[Replica]:
        """The copies of the anchored file *cid*, and when each was last verified."""
        return [
            Replica(row.store, row.space, row.content_id, row.sha256, row.verified_at, row.outcome)
            for row in self._stores.manifest.replicas(CAS_SPACE, cid)
            if not row.deleted
        ]

    def _refuse_other_message(self, log: str, message_id: int, proof: bytes) -> None:
        """Raise an error where *proof* is of another message than the one that the log has under this id."""
        proven = msgspec.json.decode(proof)["message"]
        try:
            opened = self._logs.store.log(LogSpec(log), create=False)
            if opened.bodies_only:  # a copy without the times of its messages
                return
            parts = list(opened.read(message_id, message_id, gaps="all"))
        except MillstreamError:  # the log is not here, is shorter, or cannot be read: the proof does not need it
            return
        if any(msgspec.json.decode(encode_line(found)) != proven for part in parts for found in part):
            raise NotAnchoredError(
                f"message {message_id} of log {log!r} is not anchored: another message with this id is. The log lost "
                "messages after they were anchored, and gave their ids again, and no id is anchored twice. Write new "
                "messages to a log of another name; to prove the anchored message, restore the log from a backup"
            )

    def _require_message(self, log: str, message_id: int) -> None:
        """Raise an error where there is no such message or log. Batches may come here without the log they are of."""
        if any(stream.log == log for stream in self._anchoring.journal.streams()):
            return
        last_id = self._logs.store.log(LogSpec(log), create=False).last_id
        if message_id > last_id:
            has = f"its last one is {last_id}" if last_id else "it has none yet"
            raise UnknownMessageError(f"log {log!r} has no message {message_id}: {has}")
