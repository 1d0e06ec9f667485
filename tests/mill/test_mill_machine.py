"""A repository under random use and random damage: what users do, what disks do, and what the mill makes of it."""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from millstream.core.clock import VirtualClock
from millstream.core.retry import NO_RETRY
from millstream.log import LogSpec, open_store
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.sweep import check_space
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import ReportResult
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Duplicate
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from suite.sizes import machine

NAMES = st.sampled_from(["a", "b/c", "d e"])
BODIES = st.binary(min_size=1, max_size=20)
COPIES = ("2", "3")


class Repository(RuleBasedStateMachine):
    """Store "1" is the source, "2" and "3" are copies; the model is what users put and have not deleted."""

    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory()
        self.clock = VirtualClock()
        self.stores = {name: LocalStore(Path(self.folder.name) / name) for name in ("1", *COPIES)}
        for store in self.stores.values():
            store.create_space("s")
        self.engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        self.manifest = Manifest(self.engine)
        self.providers = ConfiguredStores(self.stores, self.clock, NO_RETRY)
        self.log_store = open_store("memory://", clock=self.clock)
        self.queue = LogWorkQueue(self.log_store.log(LogSpec("low")), self.clock)
        self.model: dict[str, bytes] = {}
        self.copied: dict[str, set[str]] = {store: set() for store in COPIES}

    @rule(name=NAMES, body=BODIES)
    def a_user_puts_an_item(self, name: str, body: bytes) -> None:
        info = self.stores["1"].put("s", name, io.BytesIO(body))
        self.model[name] = body
        self.record(ManifestEvent("1", "s", name, self.tick(), info.checksum(), info.size))

    @rule(name=NAMES)
    def a_user_deletes_an_item(self, name: str) -> None:
        if self.model.pop(name, None) is not None:
            self.stores["1"].delete("s", name)
            self.record(ManifestEvent("1", "s", name, self.tick(), deleted=True))

    @rule(store=st.sampled_from(COPIES), name=NAMES, seed=st.integers(0, 99))
    def a_disk_flips_a_bit_of_a_copy(self, store: str, name: str, seed: int) -> None:
        if name in self.copied[store]:
            path = self.stores[store].path_of("s", name)
            damaged = path.read_bytes()
            flip_bit(path, seed)
            assert path.read_bytes() != damaged

    @rule(store=st.sampled_from(COPIES), name=NAMES)
    def a_hand_removes_a_copy(self, store: str, name: str) -> None:
        if name in self.copied[store]:
            self.copied[store].discard(name)
            self.stores[store].path_of("s", name).unlink()

    @rule()
    def the_mill_duplicates(self) -> None:
        record_space(self.providers, self.manifest, "1", "s")
        for copy in COPIES:
            plan_space_duplication(self.providers, self.manifest, Pair("1", copy), "s", self.queue, everything=True)
        registry = ProcessorRegistry({Duplicate: DuplicationProcessor(self.providers, self.manifest)})
        worker = WorkerManager(
            [self.queue], registry, ResultSink(self.manifest, {}), self.clock, WorkerSettings(threads=1)
        )
        worker.run_until_drained()
        assert self.queue.depth().dead == 0
        for copy in COPIES:
            self.copied[copy] = set(self.model)
            assert {entry.content_id for entry in self.stores[copy].entries("s")} == self.model.keys()

    @rule()
    def the_mill_checks_and_repairs_and_is_honest(self) -> None:
        repairer = Repairer(self.providers, self.manifest, RepairLog(self.engine), sources=lambda _: {"1"})
        for store in self.stores:
            tally = check_space(self.providers, self.manifest, store, "s", threads=1)
            if tally.result == ReportResult.SUCCESS:
                self.expect_whole(store)
            for finding in tally.findings:
                result = repairer.repair("s", finding.content_id, finding.kind)
                row = self.manifest.get(store, "s", finding.content_id)
                pending = row is not None and (
                    finding.content_id not in self.model or self.is_pending(row.sha256, row.content_id)
                )
                assert pending or not result.refused, result
                assert result.repaired or result.refused or not result.plan.actions

    @invariant()
    def p8_the_source_is_what_users_made_it(self) -> None:
        source = self.stores["1"]
        assert {entry.content_id: self.read(source, entry.content_id) for entry in source.entries("s")} == self.model

    def expect_whole(self, store: str) -> None:
        for row in self.manifest.scan(store, "s"):
            if not row.deleted and not self.is_pending(row.sha256, row.content_id):
                assert self.read(self.stores[store], row.content_id) == self.model[row.content_id]

    def is_pending(self, sha256: str | None, name: str) -> bool:
        """Whether a change at the source has not been duplicated yet."""
        row = self.manifest.get("1", "s", name)
        return row is None or row.deleted or row.sha256 != sha256

    def read(self, store: Any, name: str) -> bytes:
        with store.open("s", name) as file:
            data: bytes = file.read()
        return data

    def record(self, event: ManifestEvent) -> None:
        self.manifest.writer.record([event])

    def tick(self) -> int:
        """The time of an event. Folders have the machine's clock, so the model's runs ahead of it."""
        self.clock.advance(1)
        return 4 * 10**15 + self.clock.now()

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.log_store.close()
            self.engine.dispose()
            self.folder.cleanup()


Repository.TestCase.settings = machine(ci=12, long=250, steps=25)
TestRepository = Repository.TestCase
