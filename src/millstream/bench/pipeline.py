"""The jobs on Spark, at one, ten and a hundred times a base size: the cost per record, and the memory."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
import numpy as np
import pyarrow.parquet as pq

from millstream.batching import BatchConfig
from millstream.bench.core_shares import core_shares
from millstream.bench.fleet import MAX_DELAY, WINDOW
from millstream.bench.peers import load_peers
from millstream.bench.pipeline_data import BODY, SOURCES, log_name, write_lines, write_listings, write_log
from millstream.bench.pipeline_options import (
    chosen_names,
    core_share,
    heap_with_unit,
    record_counts,
    worker_counts,
    workers_with_cores,
)
from millstream.bench.processes import cpu_seconds, forget_peaks, on_cores, processes_of, spark_memory
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.bench.scaling import WorkerScaling
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ: dict[Size, int] = {"quick": 2_000, "small": 20_000, "full": 100_000}
"""Messages of the smallest log that is read."""

BASE: dict[Size, int] = {"quick": 2_000, "small": 20_000, "full": 20_000}
"""Messages of the smallest log that is anchored, rows of files, and items of the smallest listing."""

SWEPT: dict[Size, tuple[int, int]] = {"quick": (20, 10_000), "small": (20, 500_000), "full": (20, 1_000_000)}
"""Items of the smallest store that is swept, and their bytes."""

STEPS: dict[Size, tuple[int, ...]] = {"quick": (1,), "small": (1, 10), "full": (1, 10, 100)}

BACKENDS = ("sqlite", "segments", "mariadb")
MODES = ("read", "ingest", "anchor", "sweep", "plan")
ROUNDS = 1
"""The sizes are the comparison; a round of all of them takes ten minutes or so on two cores."""

HEAP = "512m"
"""The most heap of the driver's Java machine: the least that Spark starts with, since the driver holds no rows."""


class PipelinePeers(Protocol):
    """What the module of the peers has for this benchmark."""

    def hash_items(self, folder: Path) -> int:
        """Hash the items of the local store at *folder*; returns how many there are."""
        ...


def comparisons(
    size: Size,
    folder: Path,
    *,
    modes: str = ",".join(MODES),
    backends: str = "sqlite",
    cores: str = "2",
    workers: str = "0",
    share: str = "1",
    heap: str = HEAP,
    counts: str = "",
) -> Iterator[Comparison]:
    """One comparison a job (*modes*), and for reading one a store of logs (*backends*: sqlite, segments, mariadb).

    All processes, servers of databases too, share so many *cores*. With *workers* (such as 1,2,3) clusters of so many
    of one core each, or of a *share* of one, do the work one after the other, else the driver itself; *heap* is that of
    the driver. *counts* are the numbers of messages, rows and listed items instead of those of *size*.
    """
    wanted, stores, given = (
        chosen_names("modes", modes, MODES),
        chosen_names("backends", backends, BACKENDS),
        record_counts(counts),
    )
    if not cores.isdecimal() or cores == "0":
        raise InputError(f"--cores: invalid value {cores!r}: write a whole number of at least 1")
    clusters, each = worker_counts(workers), core_share(share)
    scaling = WorkerScaling()
    with on_cores(int(cores)) as available:
        where = f"All processes share {available} cores; the heap of the driver is {heap_with_unit(heap)}"
        for number in clusters:
            with _session(folder, size, heap, number, each) as spark:
                place = f"{where}. The cluster has {workers_with_cores(number, each)}" if number else where
                work = PipelineRuns(spark, folder, SystemClock(), place, f"on-{number}" if number else "run")
                for comparison, *warming in _of_modes(work, size, wanted, stores, given):
                    measured = scaling.measured(comparison, number) if number else comparison
                    yield _warmed(measured, *warming)


def _of_modes(
    work: PipelineRuns, size: Size, wanted: Sequence[str], stores: Sequence[str], given: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """The comparisons of the modes *wanted*, each with the contenders that warm it up if not the first."""
    if "read" in wanted:
        read = given or [READ[size] * step for step in STEPS[size]]
        for backend in stores:
            with _place(backend, work.folder) as url:
                reading = work.read(backend, url, read)
                yield reading, *range(len(read) - 1, len(reading.contenders), len(read))
    numbers = given or [BASE[size] * step for step in STEPS[size]]
    if "ingest" in wanted:
        yield (work.ingest(numbers),)
    if "anchor" in wanted:
        yield (work.anchor(numbers),)
    if "sweep" in wanted:
        items, item_bytes = SWEPT[size]
        yield work.sweep([items * step for step in STEPS[size]], item_bytes), -len(STEPS[size])
    if "plan" in wanted:
        yield (work.plan(numbers),)


@contextlib.contextmanager
def _session(folder: Path, size: Size, heap: str, workers: int, share: float) -> Iterator[SparkSession]:
    """A session on a cluster of so many *workers* with a *share* of a core, or where there are none in the driver."""
    from millstream.pipeline.session import SparkOptions, spark_session

    with contextlib.ExitStack() as held:
        master, confs = "local[*]", dict[str, str]()
        if workers:
            master, confs = held.enter_context(_cluster(str(workers), share)), _CLUSTER
        options = SparkOptions(master, heap, quick=size != "full", confs=confs)
        yield held.enter_context(spark_session(folder / "spark", options))


class PipelineRuns:
    """What the jobs work on, in *folder*, and the jobs."""

    def __init__(self, spark: SparkSession, folder: Path, clock: Clock, where: str, name: str = "run") -> None:
        """*name* tells what these runs write from what others write in *folder*; the data they work on is shared."""
        self._name = name
        self._spark, self.folder, self._clock = spark, folder, clock
        self._cores = where
        self._where = f"{where}. The smallest size ran once before the measurement, as a warm-up."
        self._url = f"sqlite:///{folder / 'log.db'}"
        self._turns = itertools.count()

    def read(self, backend: str, url: str, counts: Sequence[int]) -> Comparison:
        """A log as a DataFrame: counted with all columns and with two of them, and grouped by source."""
        for count in counts:
            write_log(url, count, 1)
        runs: list[tuple[str, Callable[[str, int], Measurement]]] = [
            ("count(), all columns", self._count),
            ("count(), id and body", functools.partial(self._count, columns=["id", "body"])),
            ("group by source", self._group),
        ]
        return Comparison(
            title=f"Reading a log as a DataFrame ({backend})",
            unit="messages/s",
            conditions=(
                f"The bodies have {BODY} bytes. {self._cores}. Before the measurement each query ran once on the "
                "largest log, because Java compiles a query while it runs. The first two queries sum the lengths "
                "of the bodies, so that each body is transferred to Spark; grouping reads only source and event time."
            ),
            contenders=[
                Contender(f"{name}, {count:,} messages", functools.partial(run, url, count))
                for name, run in runs
                for count in counts
            ],
        )

    def ingest(self, counts: Sequence[int]) -> Comparison:
        """JSON lines into a log."""
        for count in counts:
            write_lines(self.folder / f"lines-{count}", count)
        return self._compare(
            "JSON lines into a log",
            "Files of 50,000 rows are ingested into a log in SQLite; a row has about 150 bytes.",
            self._ingest,
            counts,
        )

    def anchor(self, counts: Sequence[int]) -> Comparison:
        """From a log to anchors in the ledger."""
        for count in counts:
            write_log(self._url, count, 1)
        conditions = (
            f"A log in SQLite has messages of {SOURCES:,} sources, with bodies of {BODY} bytes. The job writes "
            "batches, batch files, Merkle roots and ledger entries, and the observer reads them back."
        )
        return self._compare("From an existing log to its anchors", conditions, self._anchor, counts)

    def plan(self, counts: Sequence[int]) -> Comparison:
        """The join of two listings and the manifest of both."""
        for count in counts:
            write_listings(self.folder / f"listing-{count}", count)
        conditions = (
            "The first column is the number of items that source and copy list each. The listings are sorted, and the "
            "manifest has a row for each item. One item in a hundred differs. The time of the listings is not included."
        )
        return self._compare("Planning duplication", conditions, self._plan, counts, unit="items/s")

    def sweep(self, counts: Sequence[int], size: int) -> Comparison:
        """Every bit of a store, hashed and judged; in a checkout beside ``sha256sum`` in a process a core."""
        urls = [self._fill(count, size) for count in counts]
        runs: list[tuple[str, Callable[[str, int, int], Measurement]]] = [("integrity", self._sweep)]
        peers = cast(PipelinePeers | None, load_peers("pipeline"))
        if peers is not None:
            runs.insert(0, ("sha256sum, a process per core", functools.partial(self._sha256sum, peers)))
        return Comparison(
            title="Integrity sweep of all items",
            unit="MB/s",
            conditions=f"Items of {size:,} bytes in a local folder, which are in the page cache, are hashed with "
            "SHA-256. The rows integrity are the job of millstream pipeline integrity, which lists, hashes and judges "
            "the items, and writes a report; it has a fixed cost of some seconds. Each sha256sum process gets up to 50 "
            f"items, fewer if a core had none. To compare, divide the rates of the same number of items. {self._where}",
            contenders=[
                Contender(f"{name}, {count:,} items", functools.partial(run, url, count, count * size))
                for name, run in runs
                for count, url in zip(counts, urls, strict=True)
            ],
        )

    def _fill(self, items: int, size: int) -> str:
        """A store of this many items."""
        from millstream.stores import LocalStore

        folder = self.folder / f"store-{items}"
        there = folder.exists()
        store = LocalStore(folder)
        if there:
            return store.url
        store.create_space("docs")
        draw = np.random.Generator(np.random.PCG64(2))
        for number in range(items):
            store.put("docs", f"item-{number}", io.BytesIO(draw.bytes(size)))
        return store.url

    def _compare(
        self,
        title: str,
        conditions: str,
        run: Callable[[int], Measurement],
        counts: Sequence[int],
        unit: str = "messages/s",
    ) -> Comparison:
        each = unit.removesuffix("/s")
        contenders = [Contender(f"{count:,} {each}", functools.partial(run, count)) for count in counts]
        return Comparison(title=title, unit=unit, conditions=f"{conditions} {self._where}", contenders=contenders)

    def _count(self, url: str, count: int, columns: Sequence[str] | None = None) -> Measurement:
        from millstream.pipeline.source import read_log

        with self._timed() as sample:
            frame = read_log(self._spark, url, log_name(count), columns=columns)
            (found,) = frame.selectExpr("count(*)", "sum(octet_length(body))", "sum(id)").collect()
        _checked(found[1], count * BODY)
        _checked(found[2], count * (count + 1) // 2)
        return sample(_checked(found[0], count))

    def _group(self, url: str, count: int) -> Measurement:
        from millstream.pipeline.source import read_log

        with self._timed() as sample:
            frame = read_log(self._spark, url, log_name(count), columns=["source", "event_time"])
            rows = frame.groupBy("source").agg({"event_time": "max", "*": "count"}).collect()
        return sample(_checked(sum(row["count(1)"] for row in rows), count))

    def _ingest(self, count: int) -> Measurement:
        from millstream.pipeline.jobs.ingest import default_staging, run_ingest
        from millstream.pipeline.planning.source_files import find_files
        from millstream.pipeline.tasks.file_parsing import ParsingRules

        files = find_files([self.folder / f"lines-{count}"])
        with self._timed() as sample:
            done = run_ingest(
                self._spark,
                self._url,
                self._new("ingested"),
                files,
                ParsingRules(),
                staging=default_staging(self.folder),
            )
        return sample(_checked(done.record.rows_out, count))

    def _anchor(self, count: int) -> Measurement:
        from millstream.node import Node
        from millstream.pipeline.jobs.anchor import anchor_history
        from millstream.pipeline.jobs.batch import run_batch
        from millstream.settings import Settings

        rules = BatchConfig(WINDOW, MAX_DELAY)
        settings = Settings(data=str(self.folder / self._new("node")))
        with self._timed() as sample, Node.open(settings, create=True) as node:
            job = run_batch(self._spark, node.folder / "jobs", self._url, log_name(count), rules, clock=self._clock)
            done = anchor_history(
                job,
                log_name(count),
                node.anchoring.batch_writer,
                msgspec.to_builtins(rules),
                spark=self._spark,
                cas=node.anchoring.cas_url,
            )
        return sample(_checked(done.messages, count))

    def _sweep(self, url: str, items: int, size: int) -> Measurement:
        import sqlalchemy as sa

        from millstream.mill.manifest import Manifest
        from millstream.pipeline.jobs.integrity import run_integrity
        from millstream.pipeline.jobs.report import run_report

        engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        rows = Manifest(engine).rows()
        engine.dispose()
        with self._timed("MB") as sample:
            jobs = self.folder / self._new("sweep")
            sweep = run_integrity(self._spark, jobs, "run", {"store": url}, rows, clock=self._clock)
            run_report(self._spark, jobs, sweep, clock=self._clock)
        _checked(sweep.record.rows_out, items)
        return sample(size / 1e6)

    def _sha256sum(self, peers: PipelinePeers, url: str, items: int, size: int) -> Measurement:
        with self._timed("MB") as sample:
            _checked(peers.hash_items(Path(url.removeprefix("file://"))), items)
        return sample(size / 1e6)

    def _plan(self, count: int) -> Measurement:
        from millstream.mill.policies.policy import Pair
        from millstream.pipeline.tasks.copy_comparison import compare_copies

        folder, target = self.folder / f"listing-{count}", self.folder / self._new("plan")
        with self._timed("item") as sample:
            compare_copies(
                self._spark, folder / "listed.parquet", folder / "recorded.parquet", Pair("a", "b")
            ).write.parquet(str(target))
        _checked(sum(pq.read_metadata(path).num_rows for path in target.glob("*.parquet")), count // 100)
        return sample(count)

    def _new(self, name: str) -> str:
        return f"{name}-{self._name}-{next(self._turns)}"

    @contextlib.contextmanager
    def _timed(self, each: str = "message") -> Iterator[Callable[[float], Measurement]]:
        """A function that makes the sample of the time in the block, given how much (of *each*) was done in it.

        CPU is the processor time of the driver, its Java machine and all workers: what the work costs, however
        many cores there were and whatever else they had to do.
        """
        forget_peaks()
        began, spent = self._clock.monotonic(), cpu_seconds()
        ended: list[float] = []

        def sample(amount: float) -> Measurement:
            seconds, cpu = ended
            figures = {f"CPU µs/{each}": cpu / amount * 1e6, "seconds": seconds, "CPU s": cpu}
            return Measurement(amount / seconds, figures | spark_memory())

        yield sample
        ended += [self._clock.monotonic() - began, cpu_seconds() - spent]


def _warmed(comparison: Comparison, *which: int) -> Comparison:
    """*comparison*, after runs that do not count, the first of it if not *which*: they pay for Java's compiler."""
    for number in which or (0,):
        comparison.contenders[number].run()
    return comparison


_CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
}


@contextlib.contextmanager
def _cluster(workers: str, share: float) -> Iterator[str]:
    """The master's URL of a cluster of so many *workers* on this machine, each with at most a *share* of a core."""
    from millstream.testing.services import private
    from millstream.testing.spark import WORKERS

    before = os.environ.get(WORKERS)
    os.environ[WORKERS] = workers
    try:
        with private("spark") as cluster, contextlib.ExitStack() as held:
            if share < 1:
                held.enter_context(core_shares(processes_of("org.apache.spark.deploy.worker.Worker"), share))
            yield cluster.url
    finally:
        os.environ.pop(WORKERS)
        if before is not None:
            os.environ[WORKERS] = before


@contextlib.contextmanager
def _place(backend: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store of logs."""
    if backend != "mariadb":
        yield f"sqlite:///{folder / 'read.db'}" if backend == "sqlite" else f"segments:///{folder / 'read'}"
        return
    import sqlalchemy as sa

    from millstream.testing.services import private

    with private("mariadb-whole") as server:
        engine = sa.create_engine(server.url.replace("mysql:", "mysql+pymysql:"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text("create database bench"))
        engine.dispose()
        yield f"{server.url}bench"


def _checked(found: int, wanted: int) -> int:
    if found != wanted:
        raise AssertionError(f"the benchmark counted {found:,} in the result, expected {wanted:,}")
    return wanted
