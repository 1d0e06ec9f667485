"""Event-time batching on Spark: the job over history and the stream, over one log, on two cores of this machine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from millstream.batching import BatchConfig, Rulebook
from millstream.bench.fleet import KEYS, MAX_DELAY, PERIOD, WINDOW
from millstream.bench.processes import cpu_seconds, on_cores
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.amounts import counted
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError
from millstream.log import LogSpec, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.output.batch_sink import Trigger

MESSAGES: dict[Size, int] = {"quick": 20_000, "small": 400_000, "full": 2_000_000}
SOURCES: dict[Size, tuple[int, ...]] = {"quick": (100,), "small": (1, 1000, 20_000), "full": (1, 100, 1000, 20_000)}
GROWTH: dict[Size, tuple[int, ...]] = {"quick": (), "small": (), "full": (100_000, 1_000_000, 10_000_000)}
PER_TRIGGER = 200_000
SHARDS = 4

_BLOCK = 65_536
_BODY = 40


def comparisons(size: Size, folder: Path, *, cores: str = "2") -> Iterator[Comparison]:
    """One comparison for each number of sources, and one of the job over logs that grow, on so many *cores*."""
    from millstream.pipeline.session import SparkOptions, spark_session

    if not cores.isdecimal() or cores == "0":
        raise InputError(f"--cores: invalid value {cores!r}: write a whole number of at least 1")
    with on_cores(int(cores)) as given, spark_session(folder / "spark", SparkOptions(quick=size != "full")) as spark:
        work = SparkBatchingRuns(spark, folder, SystemClock(), given)
        for sources in SOURCES[size]:
            yield work.hosts(MESSAGES[size], sources)
        if GROWTH[size]:
            yield work.growth(GROWTH[size])


class SparkBatchingRuns:
    """Logs of a fleet's readings in *folder*, and the two hosts on Spark that batch them."""

    def __init__(self, spark: SparkSession, folder: Path, clock: Clock, cores: int) -> None:
        self._spark, self._folder, self._clock, self._cores = spark, folder, clock, cores
        self._url = f"sqlite:///{folder / 'log.db'}"
        self._turns = itertools.count()
        self._rules = Rulebook(BatchConfig(WINDOW, MAX_DELAY))

    def hosts(self, count: int, sources: int) -> Comparison:
        """Both hosts on the same *count* messages of *sources* devices."""
        log = self._write(count, sources)
        return Comparison(
            title=f"Spark, {counted(sources, 'source')}",
            unit="messages/s",
            conditions=(
                f"A SQLite log has {count:,} messages of {_BODY} bytes. All processes share {self._cores} cores. "
                "*History*: all batches of the log are written to Parquet with their names, without or with the "
                f"message lines and Merkle roots that anchoring needs. *Stream*: a trigger batches {PER_TRIGGER:,} "
                f"messages in {SHARDS} shards; batches and state are durable after each trigger, and the stream begins "
                "without state. *Steady* figures are those of a second run of history, and of the stream from its "
                "second trigger on. *CPU* is the processor time of all processes; other programs on the machine affect "
                "it less than the rate."
            ),
            contenders=[
                Contender("history, batches", functools.partial(self._history, log, count, whole=False)),
                Contender("history, batches and lines", functools.partial(self._history, log, count, whole=True)),
                Contender("stream", functools.partial(self._stream, log, count)),
            ],
        )

    def growth(self, counts: tuple[int, ...]) -> Comparison:
        """The job over history on ever larger logs of 1,000 devices: does a message cost the same?"""
        logs = {count: self._write(count, 1000) for count in counts}
        return Comparison(
            title="Spark, history of growing logs",
            unit="messages/s",
            conditions="All batches of a SQLite log with messages of 1,000 sources are written to Parquet with their "
            "names.",
            contenders=[
                Contender(f"{count:,} messages", functools.partial(self._history, log, count, whole=False))
                for count, log in logs.items()
            ],
        )

    def _write(self, count: int, sources: int) -> str:
        log = f"fleet-{sources}-{count}"
        with open_store(self._url) as store, store.log(LogSpec(log)).writer() as writer:
            for batch in fleet_messages(count, sources).to_batches(max_chunksize=_BLOCK):
                writer.append(batch)
        return log

    def _history(self, log: str, count: int, *, whole: bool) -> Measurement:
        """The job twice: as a command runs it, and again when the machine code of the first time is there."""
        first, again = (self._batch(log, count, whole=whole) for _ in range(2))
        return msgspec.structs.replace(first, figures={**first.figures, **_steady(again)})

    def _batch(self, log: str, count: int, *, whole: bool) -> Measurement:
        from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

        from millstream.pipeline.history import batch_range, write_batches
        from millstream.pipeline.planning.log_range import plan_range

        target = self._folder / f"history-{next(self._turns)}"
        begin, taken = self._clock.monotonic(), cpu_seconds()
        wanted = plan_range(self._url, log, None, None, self._clock)
        batches = batch_range(self._spark, self._url, wanted, self._rules, flush=True, whole=whole)
        write_batches(batches, target)
        seconds, taken = self._clock.monotonic() - begin, cpu_seconds() - taken
        found = self._spark.read.parquet(str(target)).where("batch is not null")
        (row,) = found.agg(F.count("*").alias("batches"), F.sum(F.size("ids")).alias("members")).collect()
        _check(row["members"], count)
        return Measurement(count / seconds, {"batches": row["batches"], "CPU µs/message": taken / count * 1e6})

    def _stream(self, log: str, count: int) -> Measurement:
        from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream

        output = f"stream-{next(self._turns)}"
        plan = StreamPlan(
            store_url=self._url,
            log=log,
            output=output,
            rules=self._rules,
            state=self._folder / f"{output}.state",
            shards=SHARDS,
            per_trigger=PER_TRIGGER,
            interval=0.0,
        )
        ends: list[tuple[float, int, float]] = []

        def note(trigger: Trigger) -> None:
            ends.append((self._clock.monotonic(), trigger.last_id, cpu_seconds()))

        begin, taken = self._clock.monotonic(), cpu_seconds()
        done = run_stream(self._spark, plan, available_now=True, on_trigger=note, clock=self._clock)
        seconds, taken = self._clock.monotonic() - begin, cpu_seconds() - taken
        _check(done.position, count)
        figures: dict[str, float] = {"batches": done.batches, "CPU µs/message": taken / count * 1e6}
        if len(ends) > 1:
            figures["steady messages/s"] = (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])
            figures["steady CPU µs/message"] = (ends[-1][2] - ends[0][2]) / (ends[-1][1] - ends[0][1]) * 1e6
        return Measurement(count / seconds, figures)


def fleet_messages(count: int, sources: int, seed: int = 1, *, body: int = _BODY, first: int = 0) -> pa.Table:
    """*count* messages of *sources* devices in order of receipt; each reports :data:`KEYS` keys once a period.

    Bodies have *body* bytes, an even number. *first* messages came before these.
    """
    draw = np.random.Generator(np.random.PCG64([seed, first]))
    number = np.arange(first, first + count)
    source, key = (number // KEYS) % sources, number % KEYS
    time = number // (sources * KEYS) * PERIOD + source * PERIOD // sources + draw.integers(0, WINDOW // 2, count)
    received = time + draw.integers(0, MAX_DELAY, count)
    order = np.argsort(received, kind="stable")
    names = pa.array([f"device-{device}" for device in range(sources)])
    keys = pa.array([f"key-{place}" for place in range(KEYS)])
    return pa.table(
        {
            "source": names.take(pa.array(source[order])),
            "key": keys.take(pa.array(key[order])),
            "event_time": pa.array(time[order]),
            "received_at": pa.array(received[order]),
            "body": _bodies(draw, count, body),
        }
    )


def _bodies(draw: np.random.Generator, count: int, size: int) -> pa.Array:
    """*count* bodies of *size* hexadecimal digits."""
    digits = draw.bytes(count * size // 2).hex().encode("ascii")
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def _steady(sample: Measurement) -> dict[str, float]:
    """What *sample* of a job that was run before says of its steady state."""
    return {"steady messages/s": sample.value, "steady CPU µs/message": sample.figures["CPU µs/message"]}


def _check(found: int, count: int) -> None:
    """All messages must have been batched or taken (none of a fleet's is late or a copy)."""
    if found != count:
        raise AssertionError(f"the job batched {found:,} messages, expected {count:,}")
