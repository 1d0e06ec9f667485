"""Offering the newest checkpoint of a ledger to its witnesses, until their quorum has cosigned it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from millstream.anchoring.errors import HttpError, NotCosignedError, TrustPolicyError, WitnessRefusalError
from millstream.anchoring.http_reader import HttpReader
from millstream.anchoring.retry_pause import RetryPause
from millstream.anchoring.transparency.entry_proof import SignedHead
from millstream.anchoring.transparency.policy import TrustPolicy, cosigning_witnesses
from millstream.anchoring.transparency.signed_note import SignedNote, encode_note, parse_note
from millstream.anchoring.witness.client import WitnessClient
from millstream.anchoring.witness.cosignature_tables import CosignatureTable, CosignedCheckpoint, WitnessRecord
from millstream.core.clock import Clock
from millstream.core.sql import in_same_fence

WITNESS_SECONDS = 10.0
"""How long a witness may take for its answer."""

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_MOST_THREADS = 16
_log = logging.getLogger(__name__)


class WitnessedTree(Protocol):
    """The durable tree of a ledger, as far as witnesses are concerned; see ``LedgerTree``."""

    def released(self) -> SignedHead | None:
        """The newest checkpoint that may be given out."""
        ...

    def consistency_path(self, old: int, new: int | None = None) -> Sequence[bytes]:
        """The consistency path between two sizes."""
        ...

    def publish_cosigned(self, data: bytes) -> None:
        """Publish the checkpoint *data* with its cosignatures, where checkpoints are published."""
        ...


class CosignatureStatus(msgspec.Struct, frozen=True):
    """How far the cosignatures of a ledger are.

    ``complete`` is the newest checkpoint with a quorum; ``collecting`` is the one offered last, which ``signed`` names
    the witnesses of; ``missing`` more of them are needed. ``witnesses`` says how each answered last.
    """

    complete: CosignedCheckpoint | None
    collecting: CosignedCheckpoint | None
    signed: tuple[str, ...]
    missing: int
    witnesses: dict[str, WitnessRecord]

    def age(self, now: int) -> int:
        """For how long the checkpoint that is collected lacks the quorum, at *now* (microseconds); 0 if it does not."""
        is_open = self.collecting is not None and self.collecting.completed_at is None
        return max(0, now - self.collecting.started_at) if self.collecting and is_open else 0


class CosignatureCollector:
    """Collects cosignatures for the checkpoints of *tree* by *policy*, whose witnesses must have URLs.

    One checkpoint is collected at a time. It stays until it has the quorum, so each witness needs to be reachable once,
    and not all at the same time; before anybody has signed it, the newest takes its place. Anchors do not wait.
    """

    def __init__(
        self,
        tree: WitnessedTree,
        policy: TrustPolicy,
        table: CosignatureTable,
        clock: Clock,
        reader: HttpReader | None = None,
    ) -> None:
        without = sorted(policy.witnesses.keys() - policy.urls.keys())
        if without:
            raise TrustPolicyError(
                f"the witness {without[0]!r} has no URL: add its URL to the end of its line in the witness policy"
            )
        self._tree = tree
        self._policy = policy
        self._table = table
        self._clock = clock
        reader = reader or HttpReader(seconds=WITNESS_SECONDS, clock=clock)
        self._clients = {name: WitnessClient(policy.urls[name], key, reader) for name, key in policy.witnesses.items()}
        for name, record in table.witnesses().items():
            if name in self._clients:
                self._clients[name].known_size = record.known_size
        self._pauses = {name: RetryPause(_FIRST_PAUSE, _LONGEST_PAUSE) for name in self._clients}
        self._published: bytes | None = None

    def collect(self) -> bool:
        """Offer the checkpoint that is due to the witnesses that have not signed it; whether the newest is complete.

        A witness that does not answer is asked again after a pause of 1 to 60 seconds. Raises
        :class:`LedgerUnavailableError` or a ``BusyError`` where what is complete cannot be published now.
        """
        newest = self._tree.released()
        if newest is None or newest.size == 0:
            return True
        row = self._chosen(newest)
        if row is None:
            return False
        signed = cosigning_witnesses(parse_note(row.data), self._policy)
        now = self._clock.monotonic()
        due = [name for name in self._clients if name not in signed and self._pauses[name].is_over(now)]
        if due:
            with ThreadPoolExecutor(min(len(due), _MOST_THREADS), "witness") as threads:
                list(threads.map(in_same_fence(lambda name: self._ask(name, row.data)), due))
        complete = self._table.complete()
        if complete is None:
            return False
        if complete.data != self._published:
            self._tree.publish_cosigned(complete.data)
            self._published = complete.data
        return complete.size >= newest.size

    def with_cosignatures(self, checkpoint: bytes) -> bytes:
        """*checkpoint* (a signed note) with the cosignatures that were collected for the same text."""
        note = parse_note(checkpoint)
        for row in (self._table.collecting(), self._table.complete()):
            known = parse_note(row.data) if row else None
            if known is not None and known.text == note.text:
                have = {(each.name, each.key_id) for each in note.signatures}
                more = tuple(each for each in known.signatures if (each.name, each.key_id) not in have)
                return encode_note(SignedNote(note.text, (*note.signatures, *more)))
        return checkpoint

    def cosigned(self) -> bytes:
        """The newest checkpoint that the quorum has signed. Raises :class:`NotCosignedError`."""
        complete = self._table.complete()
        if complete is None:
            raise NotCosignedError(
                f"no checkpoint of the ledger {self._table.ledger} has the quorum of witnesses yet: ask them with "
                f"`millstream anchor cosign --ledger {self._table.ledger}`"
            )
        return complete.data

    def pending(self, checkpoint: bytes) -> int:
        """How many more witnesses must sign *checkpoint* (a signed note) for the quorum."""
        return self._policy.missing(cosigning_witnesses(parse_note(checkpoint), self._policy))

    def status(self) -> CosignatureStatus:
        """How far the cosignatures are."""
        collecting = self._table.collecting()
        signed = cosigning_witnesses(parse_note(collecting.data), self._policy) if collecting else set()
        return CosignatureStatus(
            complete=self._table.complete(),
            collecting=collecting,
            signed=tuple(sorted(signed)),
            missing=self._policy.missing(signed),
            witnesses=self._table.witnesses(),
        )

    def _chosen(self, newest: SignedHead) -> CosignedCheckpoint | None:
        """The checkpoint to collect: the one that was begun, or *newest* in its place."""
        row = self._table.collecting()
        if row is not None:
            before, now = parse_note(row.data), parse_note(newest.data)
            if before.text == now.text:
                if all(each in before.signatures for each in now.signatures):
                    return row
                return self._table.add(now, self._policy, self._clock.now())  # the ledger signed it with another key
            signed = cosigning_witnesses(before, self._policy)
            is_done = row.completed_at is not None or not signed
            if not is_done and self._may_complete(row.size, signed):
                return row
        fresh = CosignedCheckpoint(newest.data, newest.size, self._clock.now())
        return fresh if self._table.start(row, fresh) else None

    def _may_complete(self, size: int, signed: Collection[str]) -> bool:
        """Whether the quorum for the tree of *size* can be had from those that have *signed* it, and the witnesses that
        have not cosigned a larger tree."""
        left = {name for name, client in self._clients.items() if client.known_size <= size}
        return self._policy.missing(left.union(signed)) == 0

    def _ask(self, name: str, checkpoint: bytes) -> None:
        client, now = self._clients[name], self._clock.now()
        problem, is_fork, is_refusal, answered = None, False, False, None
        try:
            cosigned = client.cosign(checkpoint, self._tree.consistency_path)
        except HttpError as error:
            problem = str(error)
        except WitnessRefusalError as error:
            problem, is_fork, is_refusal = str(error), error.is_fork or self._is_ahead(error), True
        else:
            self._table.add(
                SignedNote(parse_note(checkpoint).text, cosigned.signatures), self._policy, self._clock.now()
            )
            answered = self._clock.now()
        self._pauses[name].note(self._clock.monotonic(), failed=problem is not None)
        before = self._table.witnesses().get(name)
        if problem is not None and (before is None or before.problem != problem):
            _log.log(logging.ERROR if is_fork else logging.WARNING, "witness %s: %s", name, problem)
        answered = answered or (before.answered_at if before else None)
        self._table.put_witness(name, WitnessRecord(client.known_size, now, answered, problem, is_fork, is_refusal))

    def _is_ahead(self, error: WitnessRefusalError) -> bool:
        """Whether the witness has cosigned more entries than the ledger has ever released."""
        newest = self._tree.released()
        return error.known_size is not None and (newest is None or error.known_size > newest.size)
