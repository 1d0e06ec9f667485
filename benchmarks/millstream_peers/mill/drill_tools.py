"""Those who take part in the rot drill: Millstream's mill, and rclone in four ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from millstream.core.clock import SystemClock
from millstream.core.retry import RetryPolicy
from millstream.log import LogSpec, open_store
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.checker import CheckedItem
from millstream.mill.integrity.sweep import check_space
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair
from millstream.mill.providers import Providers
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Duplicate
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink
from millstream.queue import LogWorkQueue
from millstream.stores import Store
from millstream.stores.s3 import parse_address
from millstream.testing.swift import ENVIRONMENT
from millstream_peers.rclone import rclone

SPACE = "s"
SOURCE, COPIES = "1", ("2", "3")


class DrillTool(Protocol):
    """Somebody who keeps the copies of a space."""

    @property
    def name(self) -> str: ...

    def copy(self, stores: Mapping[str, Any]) -> None:
        """Make the copies of the space in *stores* "2" and "3" from "1"; from now on they are this tool's to keep."""
        ...

    def run(self) -> Mapping[tuple[str, str], str]:
        """Do all that the tool does about damage; what it says of items, by store and content id."""
        ...

    def close(self) -> None:
        """Close what :meth:`copy` opened."""
        ...


class Millstream:
    """Sweeps of all three stores, repairs of what they find, and a loop of the duplication."""

    name = "Millstream"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, stores: Mapping[str, Any]) -> None:
        clock = SystemClock()
        kept: dict[str, Store] = dict(stores)
        self._engine = sa.create_engine(f"sqlite:///{self._folder / 'drill.db'}")
        self._manifest = Manifest(self._engine)
        self._providers = Providers(kept, clock, RetryPolicy(attempts=3, first=0.01))
        self._logs = open_store("memory://", clock=clock)
        self._queue = LogWorkQueue(self._logs.log(LogSpec("queue")), clock=clock)
        self._duplicate()

    def run(self) -> Mapping[tuple[str, str], str]:
        told: dict[tuple[str, str], str] = {}

        def note(group: Any) -> None:
            found: CheckedItem
            for found in group:
                if found.task is not None:
                    told[found.result.store, found.result.content_id] = f"{found.result.row} {found.result.kind}"

        for store in self._providers:
            check_space(self._providers, self._manifest, store, SPACE, on_checked=note)
        log = RepairLog(self._engine)
        repairer = Repairer(self._providers, self._manifest, log, sources=lambda _: {SOURCE})
        for content_id in sorted({content_id for _, content_id in told}):
            repairer.repair(SPACE, content_id)
        return told | self._duplicate()

    def close(self) -> None:
        self._queue.close()
        self._logs.close()
        self._engine.dispose()

    def _duplicate(self) -> dict[tuple[str, str], str]:
        """A loop over both copies; the changes that it made to properties."""
        changed: dict[tuple[str, str], str] = {}
        processor = DuplicationProcessor(self._providers, self._manifest)

        class Noting:
            """Notes which tasks brought properties in line."""

            def process(self, task: Duplicate, attempt: int) -> Any:
                result = processor.process(task, attempt)
                if result.summary.startswith("D8"):
                    changed[task.destination, task.content_id] = "D8 properties"
                return result

        record_space(self._providers, self._manifest, SOURCE, SPACE)
        for copy in COPIES:
            pair = Pair(SOURCE, copy)
            plan_space_duplication(self._providers, self._manifest, pair, SPACE, self._queue, everything=True)
        sink, registry = ResultSink(self._manifest, {}), ProcessorRegistry({Duplicate: Noting()})
        WorkerManager([self._queue], registry, sink, SystemClock()).run_until_drained()
        return changed


class Rclone:
    """rclone with *arguments* from the source to both copies; the copies are made with ``rclone sync``."""

    def __init__(self, name: str, url: str, arguments: tuple[str, ...]) -> None:
        self.name = name
        self._arguments = arguments
        self._remotes = {
            "RCLONE_CONFIG_SWIFT_TYPE": "s3",
            "RCLONE_CONFIG_SWIFT_PROVIDER": "Other",
            "RCLONE_CONFIG_SWIFT_ENDPOINT": parse_address(url).endpoint or "",
            "RCLONE_CONFIG_SWIFT_ACCESS_KEY_ID": ENVIRONMENT["MILLSTREAM_TEST_S3_ACCESS_KEY_ID"],
            "RCLONE_CONFIG_SWIFT_SECRET_ACCESS_KEY": ENVIRONMENT["MILLSTREAM_TEST_S3_SECRET_ACCESS_KEY"],
            "RCLONE_CONFIG_SWIFT_FORCE_PATH_STYLE": "true",
            "RCLONE_CONFIG_SWIFT_UPLOAD_CUTOFF": "5Mi",
            "RCLONE_CONFIG_SWIFT_CHUNK_SIZE": "5Mi",
            "RCLONE_CONFIG_SWIFT_REGION": "us-east-1",
        }

    def copy(self, stores: Mapping[str, Any]) -> None:
        address = parse_address(stores["3"].url)
        self._source = str(stores[SOURCE].path_of(SPACE, "items/00000").parents[1])
        stores["2"].create_space(SPACE)
        stores["3"].create_space(SPACE)
        folder = Path(self._source).parents[1] / "2" / SPACE
        self._copies = {"2": str(folder), "3": f"swift:{address.bucket}/{address.prefix}{SPACE}"}
        for copy in self._copies.values():
            done = rclone("sync", self._source, copy, remotes=self._remotes)
            assert done.returncode == 0, done.stderr

    def run(self) -> Mapping[tuple[str, str], str]:
        told: dict[tuple[str, str], str] = {}
        for store, copy in self._copies.items():
            if self._arguments[0] == "check":
                done = rclone(*self._arguments, "--combined", "-", self._source, copy, remotes=self._remotes)
                lines = (line.split(" ", 1) for line in done.stdout.splitlines())
                told |= {(store, name): _SIGNS[sign] for sign, name in lines if sign != "="}
            else:
                done = rclone(*self._arguments, "-v", self._source, copy, remotes=self._remotes)
                names = _DONE.findall(done.stderr)
                told |= {(store, name): _VERBS[verb] for name, verb in names}
        return told

    def close(self) -> None:
        """Nothing stays open between calls."""


_SIGNS = {"+": "found missing", "-": "found extra", "*": "found differing", "!": "found unreadable"}
_DONE = re.compile(r"(?:INFO|ERROR)\s+: (.+?): (Copied|Deleted|Failed)", re.MULTILINE)
_VERBS = {"Copied": "copied again", "Deleted": "deleted", "Failed": "failed"}
