"""The job ``batch`` as a stream: a log in, its batches and rejects as messages of another log out.

Shares of messages (``pipeline/shard_source.py``) are grouped by shard, and ``transformWithState`` (no timers) keeps a
batcher's snapshot for each. The output is that of the service in process (``batching/service.py``), message for
message, and so is the state file that the job leaves: whichever of them stops, the other continues. For other rules
(``batching/rule_changes.py``) the job ends its query, and begins another one with what is open.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)
from pyspark.sql.streaming import StreamingQuery

from millstream.batching import Batcher, Rulebook
from millstream.batching.errors import SnapshotError
from millstream.batching.metrics import delay_quantiles
from millstream.batching.newest_batch import (
    foreign_batches,
    is_made_by,
    is_made_from,
    other_rules,
    shortened_source,
    state_beyond_source,
)
from millstream.batching.output_end import OutputEnd, end_of, goes_as_far, refuse_handed_over
from millstream.batching.rule_changes import RulesRecord, batched_rules, is_requested, take_request
from millstream.batching.service_state import ServiceState, is_blank, known_end, naming_state, read_state, write_state
from millstream.batching.snapshot import decode_snapshot_for
from millstream.batching.snapshot_split import join_snapshots
from millstream.batching.ticks import Ticker
from millstream.core.clock import Clock, SystemClock
from millstream.core.decoding import prepared
from millstream.core.documents import FileDocument
from millstream.core.durable import write_durably
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import Gap, Log, LogSpec, StorageError, Writer
from millstream.log.errors import WHY_SHORTER
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.output.batch_sink import BatchSink, Trigger, lease_lost
from millstream.pipeline.output.checkpoint import discard_checkpoint, last_done, read_progress
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.output.streaming_queries import INTERVAL, await_query, start_query
from millstream.pipeline.reachable import check_reachable
from millstream.pipeline.shard_source import NAME, register
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.tasks.shard_processor import STATE, ShardBatchProcessor, closed_schema
from millstream.stores.tiers import open_log_store

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Who puts the files of a checkpoint in place. Spark's other way asks a program of the system about each link, so that
a trigger starts some dozens of processes; the checkpoint lies in a folder beside the state file, which needs none."""

_END = "output.json"
"""The file of the checkpoint with the :class:`OutputEnd` after the last trigger that wrote something."""

_LOOK = 5.0
"""Seconds between two looks for a requested change of the rules; in a bucket each costs a request."""

_TICK_LOOK = 1.0
"""Seconds between two looks at the end of the log for a tick; in a bucket each costs a request."""

OBSERVED = ("batches", "rejected", "late", "open_sources")
"""Sums over the shards that Spark's progress of a trigger shows."""


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a stream job: batch *log* in the store at *store_url* into the log *output* of the same store.

    *state* is the state file that it shares with the other hosts; its checkpoint is a folder beside it. *shards* is
    how many parts the sources are dealt to, *per_trigger* how many messages a trigger takes at most, *interval* how
    many seconds lie between the beginnings of two triggers at least.
    """

    store_url: str
    log: str
    output: str
    rules: Rulebook
    state: Path
    shards: int = 4
    per_trigger: int = 200_000
    interval: float = INTERVAL

    @property
    def checkpoint(self) -> Path:
        """Spark's folder."""
        return self.state.with_suffix(".checkpoint")


class StreamRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stream job: the last processed id, and the totals of its triggers.

    ``rejects`` are the refused messages by reason, ``bytes`` the bodies that were written, ``open_sources`` those with
    records in no closed batch at the end; ``delay_seconds`` says how long half of the messages, 99 % and all of them
    took from event to receipt at most.
    """

    log: str
    output: str
    position: int
    triggers: int
    messages: int
    batches: int
    rejected: int
    rejects: dict[str, int]
    bytes: int
    open_sources: int
    delay_seconds: dict[str, float]
    seconds: float


def run_stream(
    spark: SparkSession,
    plan: StreamPlan,
    *,
    available_now: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    on_trigger: Callable[[Trigger], None] = lambda _: None,
    on_saved: Callable[[], object] = lambda: None,
    ticks: Ticker | None = None,
    figures: MetricsCollector | None = None,
    clock: Clock | None = None,
) -> StreamRun:
    """Batch the log of *plan* from its last position, until *stopped* returns True.

    With *available_now* it ends once it has taken what was there when it began. *on_saved* is called once the state
    file was written: at the beginning, at a change of the rules, and at the end. *ticks* appends ticks to the log where
    a batch is due and no message comes (:mod:`millstream.batching.ticks`). *figures* collects delays, refusals, batches
    and what is open; Spark's progress of the query has the observation ``batching``. At the end the figures are logged
    as one line. Where the output has batches, the rules of *plan* must be the latest by which they were made; a
    change that is requested while the stream runs is made between two triggers. Raises
    :class:`PipelineInputError` where the output came of more than the log holds,
    :class:`~millstream.batching.ConfigError` for other rules, :class:`~millstream.log.WriterBusyError` where another
    host is at the output, and :class:`PipelineError` where another host has taken it over since, and for what Spark
    raises.
    """
    clock, figures = clock or SystemClock(), figures or MetricsCollector()
    check_reachable(spark, plan.store_url)
    with open_log_store(plan.store_url, clock=clock, create=False) as store, contextlib.ExitStack() as held:
        source, output = store.log(LogSpec(plan.log), create=False), store.log(LogSpec(plan.output, kind="batches"))
        writer = held.enter_context(output.writer("batching"))
        record = RulesRecord(output)
        plan = msgspec.structs.replace(plan, rules=record.in_force(plan.rules, is_blank=_is_blank(plan, writer)))
        _check_source(plan, source, output, writer)
        if record.is_empty and writer.sequence:
            _check_rules(plan, source, output)
        began = clock.monotonic()
        sink = BatchSink(plan.output, writer, clock, figures, lambda: _record_end(plan, writer))
        watch = _StreamMonitor(sink, source, ticks, on_trigger=on_trigger, clock=clock)
        requests = _RuleRequests(record, clock)
        with spark_errors_explained("batch --stream"):
            while True:
                first_id = _first_id(plan, source, end_of(writer))
                record.keep(plan.rules)
                on_saved()
                watch.before = max(first_id - 1, read_progress(plan.checkpoint).done)
                query = _start(spark, plan, sink, first_id, writer.sequence, available_now=available_now)
                await_query(query, lambda: stopped() or requests.waiting(), clock, check=watch.check)
                watch.report()
                if not record.is_mine:
                    raise lease_lost(plan.output)
                save_state(spark, plan, end_of(writer))
                on_saved()
                if stopped() or not requests.found:
                    break
                plan = requests.taken_up(plan, source)
        done = _report_trigger(plan, watch, figures, clock.monotonic() - began)
        log_record(_record(plan, done))
        return done


def save_state(spark: SparkSession, plan: StreamPlan, end: OutputEnd) -> None:
    """Write where the ended query of *plan* stands into the state file, for the service or stream that continues.

    *end* is that of the output.
    """
    done = read_progress(plan.checkpoint).done
    if not done:
        return
    states = (
        spark.read.format("statestore")
        .option("path", str(plan.checkpoint))
        .option("batchId", str(last_done(plan.checkpoint)))
        .option("stateVarName", STATE)
        .load()
    )
    snapshots = [bytes(row["value"]["snapshot"]) for row in states.collect()]
    write_state(FileDocument(plan.state), ServiceState(plan.log, plan.output, done, join_snapshots(snapshots), end))


def _record_end(plan: StreamPlan, writer: Writer) -> None:
    """Let the checkpoint of *plan* know how far the output goes, for :func:`_discard_newer_progress`."""
    write_durably(plan.checkpoint / _END, msgspec.json.encode(end_of(writer)))


def _discard_newer_progress(plan: StreamPlan, source: Log, output: Log, end: OutputEnd) -> None:
    """Remove checkpoint and state of *plan* where *output*, which ends at *end*, has lost batches since.

    Raises the errors of :func:`~millstream.batching.output_end.goes_as_far`.
    """
    document = FileDocument(plan.state)
    if not goes_as_far(end, _known_end(plan), source, output, document):
        document.path.unlink(missing_ok=True)
        discard_checkpoint(plan.checkpoint)
    if not (document.path.exists() or plan.checkpoint.exists()):
        refuse_handed_over(end, source, output, document)


def _is_blank(plan: StreamPlan, writer: Writer) -> bool:
    """Whether nothing was batched into the output, which *writer* writes, by the rules of an earlier start."""
    with contextlib.suppress(SnapshotError):
        return is_blank(read_state(FileDocument(plan.state), plan.log, plan.output), end_of(writer))
    return False


def _known_end(plan: StreamPlan) -> OutputEnd | None:
    """How far the output went when the checkpoint or the state of *plan* was written last; None where unknown."""
    recorded, known = plan.checkpoint / _END, list[OutputEnd | None]()
    if recorded.exists():
        known.append(msgspec.json.decode(recorded.read_bytes(), type=prepared(OutputEnd)))
    with contextlib.suppress(SnapshotError):  # where there is a checkpoint, nobody needs the state
        state = read_state(FileDocument(plan.state), plan.log, plan.output)
        if state is not None or not plan.checkpoint.exists():
            known.append(known_end(state))
    return max(filter(None, known), key=lambda end: end.last_id, default=None)


def _check_source(plan: StreamPlan, source: Log, output: Log, writer: Writer) -> None:
    if writer.sequence > source.last_id:
        raise PipelineInputError(shortened_source(plan.output, source, writer.sequence))
    if writer.sequence and not is_made_from(output, source, has_state=_has_state(plan)):
        raise PipelineInputError(foreign_batches(plan.output, plan.log))
    _discard_newer_progress(plan, source, output, end_of(writer))


def _has_state(plan: StreamPlan) -> bool:
    """Whether the stream continues from a state or a checkpoint."""
    return plan.state.exists() or (plan.checkpoint / "begin.json").exists()


def _check_rules(plan: StreamPlan, source: Log, output: Log) -> None:
    """Raise :class:`PipelineInputError` where *output*, which an earlier release wrote, has batches of other rules.

    Where the state has the rules, these are compared. Raises :class:`SnapshotError` then.
    """
    document, kept = FileDocument(plan.state), None
    with contextlib.suppress(SnapshotError):  # where there is a checkpoint, nobody needs the state
        kept = read_state(document, plan.log, plan.output)
    if kept is not None:
        with naming_state(document):
            decode_snapshot_for(kept.snapshot, plan.rules)
    elif not is_made_by(plan.rules, output, source, has_state=_has_state(plan)):
        raise PipelineInputError(other_rules(plan.output, plan.rules))


def _start(
    spark: SparkSession, plan: StreamPlan, sink: BatchSink, first_id: int, written: int, *, available_now: bool
) -> StreamingQuery:
    register(spark)
    with _settings(spark, _confs(plan)):
        batches = batch_shares(_shares(spark, plan, first_id, written), plan.rules)
        return start_query(batches, sink, plan.checkpoint, available_now=available_now, interval=plan.interval)


def batch_shares(shares: DataFrame, rules: Rulebook) -> DataFrame:
    """A stream of shares (``SHARD_SCHEMA``) as what each trigger closes (``CLOSED_SCHEMA``)."""
    closed = shares.groupBy("shard").transformWithStateInPandas(
        ShardBatchProcessor(rules), outputStructType=closed_schema(), outputMode="Append", timeMode="None"
    )
    return closed.observe("batching", *(F.sum(name).alias(name) for name in OBSERVED))


def _shares(spark: SparkSession, plan: StreamPlan, first_id: int, written: int) -> DataFrame:
    reader = spark.readStream.format(NAME).option("store", plan.store_url).option("log", plan.log)
    reader = reader.option("from", str(first_id)).option("shards", str(plan.shards))
    reader = reader.option("maxMessagesPerTrigger", str(plan.per_trigger))
    reader = reader.option("leastPartitions", str(spark.sparkContext.defaultParallelism))
    if written >= first_id:
        reader = reader.option("barrier", str(written))
    if plan.state.exists():
        reader = reader.option("state", str(plan.state)).option("output", plan.output)
    return reader.load()


def _first_id(plan: StreamPlan, source: Log, end: OutputEnd) -> int:
    """The id that the query begins with, or began with: a checkpoint that others have overtaken is thrown away, and
    so is one from before a change of the rules: it may have come further than the output shows.

    *end* is that of the output. Where a trigger was begun that lies across the last id of which the output knows,
    another host has gone on in between, and what comes of that trigger would be there in part.
    """
    begin, written = plan.checkpoint / "begin.json", end.sequence
    if begin.exists():
        kept = msgspec.json.decode(begin.read_bytes(), type=prepared(_StreamStart))
        progress = read_progress(plan.checkpoint)
        ours = written <= progress.done or written == progress.begun
        if progress.done and ours and (kept.shards, kept.changes) == (plan.shards, len(plan.rules.later)):
            if progress.done > source.last_id:
                raise PipelineInputError(_checkpoint_beyond_source(plan, progress.done, source))
            if not _has_message(source, progress.done, progress.received_at):
                raise PipelineInputError(_checkpoint_of_lost_messages(plan, progress.done, source))
            return kept.first_id
    first_id = _first_id_anew(plan, source, written)
    _save_beginning(plan, first_id, end)
    discard_checkpoint(plan.checkpoint)
    plan.checkpoint.mkdir(parents=True)
    write_durably(begin, msgspec.json.encode(_StreamStart(first_id, plan.shards, len(plan.rules.later))))
    return first_id


def _has_message(source: Log, number: int, received_at: int | None) -> bool:
    """Whether message *number* of *source* was received at this time; True also where that cannot be said."""
    if received_at is None or number < source.first_id:
        return True
    with contextlib.suppress(StorageError):
        (found,) = source.read(number, number, ["received_at"], gaps="all")
        return isinstance(found, Gap) or found.arrow.column("received_at")[0].as_py() == received_at
    return True


def _checkpoint_of_lost_messages(plan: StreamPlan, done: int, source: Log) -> str:
    return (
        f"the checkpoint {plan.checkpoint} is at message {done} of log {source.name!r}, but another message has this "
        f"id now: {WHY_SHORTER}, or in a failover of its database. The new messages up to this one would not be "
        f"batched. Delete the checkpoint: the stream then continues from the state {plan.state}, which must not be "
        "newer than the loss, either"
    )


def _checkpoint_beyond_source(plan: StreamPlan, done: int, source: Log) -> str:
    return (
        f"the checkpoint {plan.checkpoint} is at message {done} of log {source.name!r}, but this log now ends at "
        f"{source.last_id}: {WHY_SHORTER}. Delete the checkpoint: the stream then continues from the state "
        f"{plan.state}, which must not be newer than the log, either"
    )


def _first_id_anew(plan: StreamPlan, source: Log, written: int) -> int:
    """The id after that of the state file; without one, the first of the log. A checkpoint makes both unnecessary."""
    state = read_state(FileDocument(plan.state), plan.log, plan.output)
    if state is not None and state.position > source.last_id:
        where = f"{plan.state} (with node.database: or its row in the table node_documents)"
        raise PipelineInputError(state_beyond_source(where, state.position, source))
    if state is not None:
        return state.position + 1
    if written and source.first_id > 1:
        raise PipelineInputError(
            f"log {plan.output!r} was written from {plan.log!r} up to message {written}, but the state "
            f"file {plan.state} is missing and {plan.log!r} begins at {source.first_id}: restore the state file, or "
            "give the job another output log"
        )
    return source.first_id


def _save_beginning(plan: StreamPlan, first_id: int, end: OutputEnd) -> None:
    """Write the rules into the state file where there is none yet, as a service does before its first batch: they can
    be changed while the stream runs. Raises :class:`~millstream.batching.SnapshotError` for one of other rules, which
    tasks could not name."""
    document = FileDocument(plan.state)
    kept = read_state(document, plan.log, plan.output)
    with naming_state(document):
        is_new = kept is None or is_blank(kept, end)
        if kept is not None and not is_new:
            decode_snapshot_for(kept.snapshot, plan.rules)
    if is_new:
        snapshot = Batcher.of(plan.rules).snapshot()
        write_state(document, ServiceState(plan.log, plan.output, first_id - 1, snapshot, end))


class _StreamStart(msgspec.Struct, frozen=True):
    """The inputs with which a checkpoint was created; *changes* is how often the rules had been changed."""

    first_id: int
    shards: int
    changes: int = 0


def _confs(plan: StreamPlan) -> dict[str, str]:
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return {
        "spark.sql.shuffle.partitions": str(plan.shards),
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.sql.streaming.stateStore.providerClass": store,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": "4",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }


@contextlib.contextmanager
def _settings(spark: SparkSession, confs: dict[str, str]) -> Iterator[None]:
    """Settings of a query, which takes them up when it is started."""
    before = {name: spark.conf.get(name, None) for name in confs}
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            spark.conf.unset(name) if kept is None else spark.conf.set(name, kept)


class _RuleRequests:
    """The changes of the rules that are requested of the stream that holds *record*.

    ``found`` is whether one was waiting at the last look.
    """

    def __init__(self, record: RulesRecord, clock: Clock) -> None:
        self._record, self._clock = record, clock
        self._look_at = clock.monotonic() + _LOOK
        self.found = False

    def waiting(self) -> bool:
        """Whether a change is requested; looks every :data:`_LOOK` seconds."""
        if not self.found and self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + _LOOK
            self.found = is_requested(self._record, self._clock.now())
        return self.found

    def taken_up(self, plan: StreamPlan, source: Log) -> StreamPlan:
        """*plan*, whose query has ended and whose state is saved, with the requested rules; *plan* as it was where they
        are not possible."""
        self.found = False
        reached = batched_rules(source, self._record.output, FileDocument(plan.state))
        batched_to = None if reached is None else reached.clock
        rules = take_request(self._record, plan.rules, batched_to, self._clock.now())
        return plan if rules is None else msgspec.structs.replace(plan, rules=rules)


class _StreamMonitor:
    """Looks after a running query: tells of its triggers, and appends a tick where a batch is due and nothing comes.

    ``before`` is the last id that was taken before the query began.
    """

    def __init__(
        self,
        sink: BatchSink,
        source: Log,
        ticks: Ticker | None,
        *,
        on_trigger: Callable[[Trigger], None],
        clock: Clock,
    ) -> None:
        self._sink, self._source, self._ticks = sink, source, ticks
        self._on_trigger, self._clock = on_trigger, clock
        self.before = 0
        self._last: Trigger | None = None
        self._look_at = clock.monotonic()
        self.triggers = self.messages = self.batches = self.rejected = self.bytes = self.open_sources = 0
        self.rejects: Counter[str] = Counter()

    def check(self) -> None:
        """Tell of what was written, and let time continue in the log where nothing else does."""
        self.report()
        self._tick()

    def report(self) -> None:
        """Tell of the triggers since the last time, and add them up."""
        for trigger in self._sink.triggers():
            if self._last is not None and trigger.last_id <= self._last.last_id:
                continue  # made again by a query that was started for a change of the rules
            self._last = trigger
            self.triggers += 1
            self.messages += trigger.last_id - trigger.first_id + 1
            self.batches += trigger.batches
            self.rejected += trigger.rejected
            self.rejects.update(trigger.rejects)
            self.bytes += trigger.bytes
            self.open_sources = trigger.open_sources
            self._on_trigger(trigger)

    def _tick(self) -> None:
        """Append a tick where something is due, and what was taken is the last word of the log.

        Before the first trigger only the shards know what is open in them, since an earlier run: a tick makes them say.
        """
        position, due = self.before, 0 if self.before else None
        if self._last is not None:
            position, due = self._last.last_id, self._last.due
        if self._ticks is None or due is None or self._clock.now() < due:
            return
        if self._clock.monotonic() < self._look_at:
            return
        self._look_at = self._clock.monotonic() + _TICK_LOOK
        if self._source.last_id == position:
            self._ticks()


def _report_trigger(plan: StreamPlan, watch: _StreamMonitor, figures: MetricsCollector, seconds: float) -> StreamRun:
    return StreamRun(
        log=plan.log,
        output=plan.output,
        position=read_progress(plan.checkpoint).done,
        triggers=watch.triggers,
        messages=watch.messages,
        batches=watch.batches,
        rejected=watch.rejected,
        rejects=dict(sorted(watch.rejects.items())),
        bytes=watch.bytes,
        open_sources=watch.open_sources,
        delay_seconds=delay_quantiles(figures.figures()),
        seconds=round(seconds, 3),
    )


def _record(plan: StreamPlan, done: StreamRun) -> JobRecord:
    inputs = {"log": plan.log, "output": plan.output, "rules": plan.rules.plain, "shards": plan.shards}
    counts = {"batches": done.batches, "open_sources": done.open_sources, "position": done.position}
    counts |= {"rejected": done.rejected, "triggers": done.triggers, **done.rejects}
    return JobRecord(
        job="batch-stream",
        inputs=inputs,
        rows_in=done.messages,
        rows_out=done.batches + done.rejected,
        bytes=done.bytes,
        seconds=done.seconds,
        counts=counts,
    )
