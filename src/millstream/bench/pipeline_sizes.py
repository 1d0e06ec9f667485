"""What jobs on Spark write for each record and each object, in bytes: ``python -m millstream.bench.pipeline_sizes``.

Prints two tables of Markdown, those of ``docs/scale.md``. Sizes do not depend on the machine, so once is enough: it
takes a minute or two.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.batching import BatchConfig
from millstream.bench.batching_spark import fleet_messages
from millstream.bench.fleet import MAX_DELAY, WINDOW
from millstream.log import LogSpec
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.node import Node
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.session import SparkOptions, spark_session
from millstream.settings import Settings
from millstream.stores import LocalStore

MESSAGES, ITEMS = 200_000, 5_000
_SOURCES, _BODY, _ITEM_BYTES = 1000, 100, 1000


def main() -> None:
    """Measure in a temporary folder, and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, unit, sizes, count in (
            ("bytes per message", "messages", _of_records(folder), MESSAGES),
            ("bytes per object", "objects", _of_objects(folder), ITEMS),
        ):
            print(f"| data | {title} | for 10⁹ {unit} |\n|---|---:|---:|")
            for what, size in sizes:
                print(f"| {what} | {size / count:,.0f} | {size / count:,.0f} GB |", flush=True)
            print()


def _of_records(folder: Path) -> Iterator[tuple[str, int]]:
    rules, events = BatchConfig(WINDOW, MAX_DELAY), folder / "events-of-batch"
    with Node.open(Settings(data=str(folder / "node")), create=True) as node:
        log = node.logs.store.log(LogSpec("in"))
        with log.writer() as writer:
            for part in fleet_messages(MESSAGES, _SOURCES, 1, body=_BODY).to_batches(max_chunksize=65_536):
                writer.append(part)
        yield "the log, blocks as stored (SQLite, Zstandard)", sum(b.bytes for b in log.block_ranges(1, MESSAGES))
        with spark_session(folder / "spark", _options(events)) as spark:
            job = run_batch(spark, node.folder / "jobs", node.settings.log_url, "in", rules)
            config = msgspec.to_builtins(rules)
            anchor_history(job, "in", node.anchoring.batch_writer, config, spark=spark, cas=node.anchoring.cas_url)
        yield (
            "shuffles: messages to the tasks that batch them, batches for sorting, plans of anchors",
            _shuffled(events),
        )
        yield "output of `pipeline batch` (Parquet, with the message lines)", _held(job.data)
    per_batch = MESSAGES / job.record.counts["batches"]
    yield (
        f"batch files and manifests (plain JSON lines; {per_batch:.1f} messages per batch)",
        _held(folder / "node" / "cas"),
    )
    yield (
        "`node.db` after anchoring",
        ((folder / "node" / "node.db").stat().st_size),
    )


def _of_objects(folder: Path) -> Iterator[tuple[str, int]]:
    store, path, events = LocalStore(folder / "store", create=True), folder / "manifest.db", folder / "events-of-sweep"
    engine = sa.create_engine(f"sqlite:///{path}")
    manifest, stores = Manifest(engine), {"primary": store.url}
    manifest.writer.record(_stored(store))
    with spark_session(folder / "spark", _options(events)) as spark:
        listed = run_inventory(spark, folder / "jobs", "now", stores)
        sweep = run_integrity(spark, folder / "jobs", "now", stores, manifest.rows())
        judged = run_report(spark, folder / "jobs", sweep)
    engine.dispose()
    yield "listing (Parquet, which compresses similar ids well)", _held(listed.data)
    yield "manifest row (SQLite)", path.stat().st_size
    yield (
        "shuffles of a listing and a sweep: listing, manifest (the expected checksums), their join, groups of items",
        _shuffled(events),
    )
    yield "input of a sweep: the listed and recorded size, time and checksum of each item (Parquet)", _held(sweep.facts)
    yield "results of a sweep (Parquet)", _held(judged.data)


def _stored(store: LocalStore) -> Iterator[ManifestEvent]:
    """Items that are put into *store*, as the manifest takes them; ids of 24 characters."""
    store.create_space("docs")
    for number in range(ITEMS):
        name = f"folder-{number // 100:05}/item-{number:06}"
        info = store.put("docs", name, io.BytesIO(number.to_bytes(8) * (_ITEM_BYTES // 8)))
        yield ManifestEvent("primary", "docs", name, 1, info.checksum(), info.size)


def _options(events: Path) -> SparkOptions:
    """A session that writes its event log into *events*, and shuffles as a cluster does."""
    events.mkdir()
    confs = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.shuffle.compress": "true"}
    return SparkOptions(master="local[2]", confs=confs | {"spark.eventLog.compress": "false"})


def _shuffled(events: Path) -> int:
    """The bytes that tasks wrote for others, by the event log."""
    total = 0
    for path in events.rglob("*"):
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                event = json.loads(line) if '"SparkListenerTaskEnd"' in line else {}
                written = event.get("Task Metrics", {}).get("Shuffle Write Metrics", {})
                total += written.get("Shuffle Bytes Written", 0)
    return total


def _held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name[0] not in "._")


if __name__ == "__main__":
    main()
