"""The three ledgers of a node by their names, their signed trees, and the keys that sign them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from millstream.anchoring import LogLedger
from millstream.anchoring.errors import LedgerKeyError, TimestampError, TrustPolicyError
from millstream.anchoring.log_ledger import LEDGER_LOG
from millstream.anchoring.transparency.entry_proof import EntryProof, newest_checkpoint, prove_entry
from millstream.anchoring.transparency.keys import LedgerKeys
from millstream.anchoring.transparency.ledger_tree import LedgerTree
from millstream.anchoring.transparency.published_files import PublishedFiles
from millstream.anchoring.transparency.signer import CheckpointSigner
from millstream.anchoring.transparency.tiles import CHECKPOINT
from millstream.core.cached import locked_cached_property
from millstream.core.errors import BusyError
from millstream.log import system_log
from millstream.node.anchoring import AnchoringPart
from millstream.node.context import NodeContext
from millstream.node.ledger_trees import LEDGERS, LedgerName, LedgerTreesPart, ledger_keys
from millstream.node.logs import LogsPart
from millstream.node.registry import REGISTRY_LEDGER, RegistryPart
from millstream.node.reports import REPORT_LEDGER, ReportsPart

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.collector import TimestampCollector
    from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp
    from millstream.anchoring.timestamps.timestamp_tables import TimestampTable
    from millstream.anchoring.transparency.policy import TrustPolicy
    from millstream.anchoring.witness.collector import CosignatureCollector

__all__ = ["LEDGERS", "LedgerName", "LedgersPart", "SignedLedger", "ledger_keys"]


StampEntry: TypeAlias = "Callable[[int], Sequence[EntryTimestamp]]"
"""The time stamps of the ledger entry with this number."""


class SignedLedger(msgspec.Struct, frozen=True):
    """A ledger, its durable tree, what signs the tree's heads, and what collects cosignatures of them, if anything.

    ``stamp`` gives the time stamps of an entry.
    """

    ledger: LogLedger
    tree: LedgerTree
    signer: CheckpointSigner
    collector: CosignatureCollector | None = None
    stamp: StampEntry | None = None

    def checkpoint(self) -> bytes:
        """The newest checkpoint, signed, copied and published now where that is missing, as far as this process may.

        It has the cosignatures that were collected for it.
        """
        try:
            data = self.tree.checkpoint().data
        except (BusyError, LedgerKeyError):
            data = newest_checkpoint(self.tree, self.signer, covers=self.ledger.last_number).data
        return self.collector.with_cosignatures(data) if self.collector else data

    def prove_entry(self, number: int) -> EntryProof:
        """The proof that entry *number* is in the tree of a checkpoint. Raises :class:`LedgerError`.

        That is the newest one with the quorum of witnesses, if it covers the entry, otherwise the newest one. The proof
        has the time stamps of the entry.
        """
        complete = self.collector.status().complete if self.collector else None
        proof = prove_entry(number, self.ledger, self.tree, self.signer, cosigned=complete)
        if self.stamp is not None:
            proof = msgspec.structs.replace(proof, timestamps=self.stamp(number))
        if self.collector is None:
            return proof
        return msgspec.structs.replace(proof, checkpoint=self.collector.with_cosignatures(proof.checkpoint))


class LedgersPart:
    """The ledgers of batches (anchors), of integrity reports, and of identifiers (registry)."""

    def __init__(
        self,
        context: NodeContext,
        trees: LedgerTreesPart,
        *,
        logs: LogsPart,
        anchoring: AnchoringPart,
        reports: ReportsPart,
        registry: RegistryPart,
    ) -> None:
        self._context = context
        self._trees = trees
        self._logs = logs
        self._published: dict[LedgerName, PublishedFiles | None] = {}
        self._collectors: dict[LedgerName, CosignatureCollector] = {}
        self._stampers: dict[LedgerName, TimestampCollector] = {}
        self._lock = threading.Lock()
        self._anchoring = anchoring
        self._reports = reports
        self._registry = registry

    def ledger(self, name: LedgerName) -> LogLedger:
        """The ledger *name*."""
        if name == "reports":
            return self._reports.ledger
        return self._registry.ledger if name == "registry" else self._anchoring.ledger

    def has(self, name: LedgerName) -> bool:
        """Whether the ledger *name* was begun."""
        log = {"anchors": LEDGER_LOG, "reports": REPORT_LEDGER, "registry": REGISTRY_LEDGER}[name]
        return system_log(log, "ledger").name in self._logs.store.kinds()

    def tree(self, name: LedgerName) -> LedgerTree:
        """The tree of the ledger *name*, and its checkpoints."""
        self.ledger(name)
        return self._trees.tree(name)

    def signed(self, name: LedgerName) -> SignedLedger:
        """The ledger *name* with its tree and what signs it."""
        tree = self.tree(name)
        return SignedLedger(
            self.ledger(name), tree, tree.required_signer, self.collector(name), partial(self._stamps, name)
        )

    @locked_cached_property
    def witness_policy(self) -> TrustPolicy | None:
        """The policy whose witnesses cosign checkpoints; None if the settings name none.

        Raises :class:`TrustPolicyError`.
        """
        from millstream.anchoring.transparency.policy import read_policy

        path = self._context.settings.anchoring.witness_policy
        return read_policy(Path(path)) if path else None

    def collector(self, name: LedgerName) -> CosignatureCollector | None:
        """What collects cosignatures for the ledger *name*, None without witnesses.

        Raises :class:`TrustPolicyError`.
        """
        from millstream.anchoring.witness.collector import CosignatureCollector
        from millstream.anchoring.witness.cosignature_tables import CosignatureTable

        policy = self.witness_policy
        if policy is None:
            return None
        with self._lock:
            if name not in self._collectors:
                table = CosignatureTable(self._trees.engine, name)
                self._collectors[name] = CosignatureCollector(self.tree(name), policy, table, self._context.clock)
            return self._collectors[name]

    def required_collector(self, name: LedgerName) -> CosignatureCollector:
        """What collects cosignatures for the ledger *name*. Raises :class:`TrustPolicyError` without witnesses."""
        collector = self.collector(name)
        if collector is None:
            raise TrustPolicyError("no witnesses are configured: set anchoring.witness_policy to a file with a policy")
        return collector

    def timestamp_table(self, name: LedgerName) -> TimestampTable:
        """The time stamps of the ledger *name*; there may be some although no authority is configured any more."""
        from millstream.anchoring.timestamps.timestamp_tables import TimestampTable

        return TimestampTable(self._trees.engine, name)

    def find_timestamps(self, name: LedgerName) -> None:
        """Search content-addressed storage for the time stamps of the ledger *name*, and list them anew.

        Raises :class:`TimestampError` where the ledger has some already.
        """
        from millstream.anchoring.timestamps.finding import find_timestamps

        find_timestamps(self._anchoring.cas, self.tree(name), self.timestamp_table(name))

    def _stamps(self, name: LedgerName, number: int) -> Sequence[EntryTimestamp]:
        """The time stamps of entry *number* of the ledger *name*."""
        from millstream.anchoring.timestamps.stamped_entries import timestamps_of

        records = self.timestamp_table(name).records()
        path, now = self.tree(name).inclusion_path, self._context.clock.now()
        return timestamps_of(number, records, cas=self._anchoring.cas, path=path, now=now) if records else ()

    def timestamps(self, name: LedgerName) -> TimestampCollector | None:
        """What has the ledger *name* time-stamped, None without authorities.

        Raises :class:`TimestampError` for certificates that cannot be used, ImportError without the package.
        """
        from millstream.anchoring.http_reader import HttpReader
        from millstream.anchoring.timestamps.authorities import read_authorities
        from millstream.anchoring.timestamps.client import TimestampClient
        from millstream.anchoring.timestamps.collector import AUTHORITY_SECONDS, TimestampCollector, TimestampRules

        settings, clock = self._context.settings.anchoring, self._context.clock
        if not settings.timestamp_authorities:
            return None
        import rfc3161_client  # noqa: F401  # now rather than at the first request

        with self._lock:
            if name not in self._stampers:
                path = settings.timestamp_certificates
                trusted = read_authorities(Path(path)) if path else None
                reader = HttpReader(seconds=AUTHORITY_SECONDS, clock=clock)
                clients = [TimestampClient(url, trusted, reader) for url in settings.timestamp_authorities]
                rules = TimestampRules(
                    interval=settings.timestamp_interval,
                    digest=settings.timestamp_digest,
                    renewal=settings.timestamp_renewal,
                    retired=settings.timestamp_retired_digests,
                )
                self._stampers[name] = TimestampCollector(
                    self.tree(name),
                    clients,
                    table=self.timestamp_table(name),
                    cas=self._anchoring.cas,
                    clock=clock,
                    rules=rules,
                )
            return self._stampers[name]

    def required_timestamps(self, name: LedgerName) -> TimestampCollector:
        """What has the ledger *name* time-stamped. Raises :class:`TimestampError` without authorities."""
        collector = self.timestamps(name)
        if collector is None:
            raise TimestampError(
                "no time-stamping authorities are configured: set anchoring.timestamp_authorities to their URLs"
            )
        return collector

    def published(self, name: LedgerName) -> PublishedFiles | None:
        """The published tiles of the ledger *name*; None where they are not published."""
        if name not in self._published:
            self._published[name] = self._trees.places(name).tiles
        return self._published[name]

    def copied(self, name: LedgerName) -> bytes | None:
        """The checkpoint of the ledger *name* outside the data folder; None where there is none.

        Raises :class:`LedgerUnavailableError`.
        """
        copy = self._trees.places(name).copy
        return copy.read(CHECKPOINT) if copy is not None else None

    def keys(self, name: LedgerName) -> LedgerKeys:
        """The keys of the ledger *name*."""
        return ledger_keys(self._context.settings, name, self._context.clock)
