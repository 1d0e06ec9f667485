"""The batch job as a stream: what the service in process gives, once, however often it is cut short or handed over."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from millstream.batching import BatchConfig, ConfigError, Override, Rulebook
from millstream.batching.rule_changes import change_rules, read_rules, request_change
from millstream.batching.service import BatchService
from millstream.batching.ticks import idle_log_ticker
from millstream.cli.main import run
from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.batch import hand_over, run_batch
from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
from millstream.pipeline.jobs.verify_batches import verify_batches
from millstream.pipeline.output.batch_sink import Trigger
from millstream.pipeline.output.checkpoint import read_progress
from millstream.pipeline.source import follow_log
from millstream.testing.killed_programs import kill_at
from suite.sizes import sized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]

RULES = Rulebook(BatchConfig(50, 20))
POLICIES = Rulebook(BatchConfig(50, 20, late="amend", grace=60), (Override(BatchConfig(20, 30), "station-1"),))


def in_order(messages: Sequence[Message]) -> list[Message]:
    """*messages* as a log would have received them."""
    return sorted(messages, key=lambda message: message.received_at or 0)


def plan_of(folder: Path, url: str, **changes: object) -> StreamPlan:
    plan = StreamPlan(
        store_url=url,
        log="untidy",
        output="batches",
        rules=RULES,
        state=folder / "batches.state",
        shards=2,
        per_trigger=400,
        interval=0.0,
    )
    return msgspec.structs.replace(plan, **changes)


def written(url: str, log: str) -> list[tuple[bytes, str, str]]:
    """The messages of the log of batches, in no order; one that is there twice is there twice."""
    with open_store(url) as store:
        found = [(m.body, m.key, m.source) for batch in store.log(LogSpec(log)).read() for m in batch]
    return sorted(found)


def serve(url: str, state: Path, output: str = "service", rules: Rulebook = RULES, commit_every: int = 8192) -> None:
    """Let the service in process take what is there."""
    with open_store(url) as store:
        source, sink = store.log(LogSpec("untidy")), store.log(LogSpec(output))
        service = BatchService(source, sink, rules, FileDocument(state), commit_every=commit_every)
        service.step()
        service.close()


def test_a_log_is_followed_in_order_and_by_its_columns(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages = write_log(log_url, "untidy", untidy(1, 500))
    triggers: list[pa.Table] = []
    frame = follow_log(spark, log_url, "untidy", first_id=11, columns=["key", "id"], per_trigger=300)
    assert frame.columns == ["key", "id"]
    writing = frame.writeStream.foreachBatch(lambda part, _: triggers.append(part.toArrow()))
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writing.start().awaitTermination()
    assert [len(trigger) for trigger in triggers] == [300, len(messages) - 310]
    rows = pa.concat_tables(triggers).sort_by("id").to_pylist()
    assert [(row["key"], row["id"]) for row in rows] == [(m.key, m.id) for m in messages[10:]]
    assert read_progress(tmp_path / "checkpoint")[:2] == (len(messages), len(messages))
    more = write_log(log_url, "untidy", untidy(2, 50))[len(messages) :]
    triggers.clear()
    writing.start().awaitTermination()
    assert sorted(pa.concat_tables(triggers)["id"].to_pylist()) == [m.id for m in more]


@pytest.mark.parametrize("rules", [RULES, POLICIES], ids=["columns", "policies"])
def test_p5_the_stream_gives_what_the_service_gives_and_they_hand_over_both_ways(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: Rulebook
) -> None:
    messages, draw = in_order(untidy(3, 1500)), random.Random(3)
    plan, begin = plan_of(tmp_path, log_url, rules=rules), 0
    for turn in range(4):
        end = len(messages) if turn == 3 else draw.randrange(begin, len(messages))
        write_log(log_url, "untidy", messages[begin:end])
        begin = end
        if turn % 2:
            serve(log_url, plan.state, plan.output, rules, commit_every=draw.randint(1, 300))
        else:
            shards, size = draw.randint(1, 3), draw.randint(100, 700)
            plan = msgspec.structs.replace(plan, shards=shards, per_trigger=size)
            run_stream(spark, plan, available_now=True)
    serve(log_url, tmp_path / "alone.state", rules=rules)
    assert written(log_url, plan.output) == written(log_url, "service")
    assert written(log_url, plan.output)


def test_a_stream_whose_checkpoint_others_have_overtaken_begins_from_the_state_they_left(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages, plan = in_order(untidy(4, 900)), plan_of(tmp_path, log_url)
    write_log(log_url, "untidy", messages[:400])
    run_stream(spark, plan, available_now=True)
    write_log(log_url, "untidy", messages[400:700])
    serve(log_url, plan.state, plan.output)
    stale = plan.state.read_bytes()
    write_log(log_url, "untidy", messages[700:])
    serve(log_url, plan.state, plan.output, commit_every=90)
    plan.state.write_bytes(stale)  # as after a crash: the output knows more than the state
    assert run_stream(spark, plan, available_now=True).position == len(messages)
    serve(log_url, tmp_path / "alone.state")
    assert written(log_url, plan.output) == written(log_url, "service")


@pytest.mark.parametrize(("next_host", "rules"), [("stream", POLICIES), ("service", RULES)])
def test_p5_history_hands_what_is_open_over_to_the_stream_or_the_service(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    next_host: str,
    rules: Rulebook,
) -> None:
    messages, plan = in_order(untidy(7, 900)), plan_of(tmp_path, log_url, rules=rules)
    write_log(log_url, "untidy", messages[:500])
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules, flush=False)
    with open_store(log_url) as store:
        hand_over(job, store.log(LogSpec("batches")), FileDocument(plan.state))
        with pytest.raises(PipelineInputError, match="already has the batching state in"):
            hand_over(job, store.log(LogSpec("batches")), FileDocument(plan.state))
    write_log(log_url, "untidy", messages[500:])
    if next_host == "stream":
        run_stream(spark, plan, available_now=True)
    else:
        serve(log_url, plan.state, plan.output, rules)
    serve(log_url, tmp_path / "alone.state", rules=rules)
    before = [(batch.batch, batch.header.closed_at) for batch in job.batches(final=False)]
    after = [(key, json.loads(body)["closed_at"]) for body, key, _ in written(log_url, plan.output) if key]
    expected = [(key, json.loads(body)["closed_at"]) for body, key, _ in written(log_url, "service") if key]
    assert sorted(before + after) == sorted(expected)
    assert before
    assert after
    refused = [json.loads(body)["rejected"] for body, key, _ in written(log_url, plan.output) if not key]
    everyone = [json.loads(body)["rejected"] for body, key, _ in written(log_url, "service") if not key]
    assert sorted([reject.rejected for reject in job.rejects()] + refused) == sorted(everyone)


STREAM = Path(__file__).parent / "children" / "stream_batches.py"


@pytest.mark.crash
def test_p5_a_query_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    """The child is killed when its output has grown to a length drawn at random: in mid-trigger or between two."""
    draw, plan = random.Random(5), plan_of(tmp_path, log_url, per_trigger=150)
    write_log(log_url, "untidy", in_order(untidy(5, 3000)))
    serve(log_url, tmp_path / "alone.state")
    most, kills = len(written(log_url, "service")), sized(ci=1, long=6)
    for _ in range(kills):
        arguments = [str(tmp_path), msgspec.json.encode(plan, enc_hook=str).decode()]
        enough = len(written(log_url, plan.output)) + draw.randrange(1, most // (2 * kills))
        reached = lambda enough=enough: len(written(log_url, plan.output)) >= enough  # noqa: E731
        kill_at([sys.executable, STREAM, *arguments], reached, f"{enough} messages")
    run_stream(spark, msgspec.structs.replace(plan, per_trigger=700, shards=plan.shards), available_now=True)
    assert written(log_url, plan.output) == written(log_url, "service")


def test_a_stream_that_is_asked_to_stop_leaves_a_state_to_go_on_from(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages, plan = in_order(untidy(6, 600)), plan_of(tmp_path, log_url, per_trigger=100)
    write_log(log_url, "untidy", messages)
    seen: list[int] = []
    run = run_stream(
        spark, plan, stopped=lambda: len(seen) >= 2, on_trigger=lambda trigger: seen.append(trigger.last_id)
    )
    assert run.messages >= 200
    assert run.position >= 100, "Spark may be stopped before it has noted that the second trigger is done"
    assert plan.state.exists()
    serve(log_url, plan.state, plan.output)
    serve(log_url, tmp_path / "alone.state")
    assert written(log_url, plan.output) == written(log_url, "service")


def test_a_log_whose_receive_times_go_back_is_refused_by_its_message(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog
) -> None:
    write_log(log_url, "untidy", [Message(b"", "k", "s", time, time) for time in (100, 200, 150)])
    with pytest.raises(
        PipelineError, match=r"message 3 of 'untidy' has an earlier receive time .*millstream pipeline batch untidy"
    ):
        run_stream(spark, plan_of(tmp_path, log_url), available_now=True)


def test_a_state_of_other_rules_is_named_before_the_stream_begins(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog
) -> None:
    write_log(log_url, "untidy", [Message(b"", "k", "s", 100, 100)])
    plan = plan_of(tmp_path, log_url)
    serve(log_url, plan.state, plan.output)
    with pytest.raises(ConfigError, match=r"window=60 .*latest rules of log 'batches' are .*window=50 "):
        run_stream(spark, msgspec.structs.replace(plan, rules=Rulebook(BatchConfig(60, 20))), available_now=True)


def test_an_output_that_somebody_writes_or_that_knows_too_much_is_refused(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog
) -> None:
    write_log(log_url, "untidy", [Message(b"", "k", "s", 100, 100)])
    with open_store(log_url) as store, store.log(LogSpec("batches")).writer("batching") as writer:
        writer.append([b"from elsewhere"], sequence=7)
        with pytest.raises(WriterBusyError):
            run_stream(spark, plan_of(tmp_path, log_url), available_now=True)
    with pytest.raises(PipelineInputError, match=r"up to message 7, but .* now ends at 1: .*a power loss"):
        run_stream(spark, plan_of(tmp_path, log_url), available_now=True)
    with open_store(log_url) as store, store.log(LogSpec("others")).writer("batching") as writer:
        writer.append([b'{"batch":"x","source":"t","start":100,"end":100,"events":[1]}'], sequence=1)
    with pytest.raises(PipelineInputError, match="'others' has batches of a log other than 'untidy'"):
        run_stream(spark, plan_of(tmp_path, log_url, output="others"), available_now=True)


def test_the_command_streams_into_a_log_and_says_so(
    spark: SparkSession,
    tmp_path: Path,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SparkPart, "session", lambda _, **__: contextlib.nullcontext(spark))
    url = f"sqlite:///{tmp_path / 'log.db'}"
    messages = write_log(url, "weather", in_order(untidy(8, 100)))
    command = ["pipeline", "batch", "weather", "--data", str(tmp_path), "--stream", "--output", "batches", "--json"]
    assert run(["pipeline", "batch", "weather", "--data", str(tmp_path), "--stream"]) == 2
    metrics = ["--metrics", str(tmp_path / "batch.prom")]
    assert run([*command, "--available-now", "--per-trigger", "80", "--shards", "1", *metrics]) == 0
    trigger, *_, done = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (trigger["first_id"], trigger["last_id"]) == (1, 80)
    assert (done["position"], done["messages"], done["output"]) == (len(messages), len(messages), "batches")
    assert (tmp_path / "batching" / "batches.state").exists()
    assert f"millstream_batching_delay_seconds_count {len(messages)}\n" in (tmp_path / "batch.prom").read_text()


def test_figures_of_a_stream_are_those_of_the_service_in_metrics_one_line_and_sparks_progress(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_log(log_url, "untidy", in_order(untidy(9, 1200)))
    plan, figures, expected = plan_of(tmp_path, log_url), MetricsCollector(), MetricsCollector()
    triggers: list[Trigger] = []
    queries: list[Any] = []

    def note(trigger: Trigger) -> None:
        triggers.append(trigger)
        queries.extend(spark.streams.active)  # the last triggers may be told of when it has ended

    with caplog.at_level(logging.INFO, "millstream.pipeline"):
        done = run_stream(spark, plan, available_now=True, on_trigger=note, figures=figures)
    observed = {each.batchId: each.observedMetrics["batching"].asDict() for each in queries[0].recentProgress}
    with open_store(log_url) as store:
        source, sink = store.log(LogSpec("untidy")), store.log(LogSpec("service"))
        service = BatchService(source, sink, RULES, FileDocument(tmp_path / "alone.state"), metrics=expected)
        service.step()
        service.close()
    ours, theirs = figures.figures(), expected.figures()
    assert ours.counters == theirs.counters
    assert ours.histograms == theirs.histograms
    assert ours.gauges["batching_open_sources", ()] == theirs.gauges["batching_open_sources", ()] == done.open_sources
    assert ours.gauges["batching_settle_lag_seconds", ()] > 0
    assert done.rejects == ours.by_label("batching_rejects_total", "reason")
    assert set(done.rejects) == {"late", "future", "duplicate", "conflicting_duplicate"}
    assert done.delay_seconds["half"] <= done.delay_seconds["all"]
    (line,) = [json.loads(record.message) for record in caplog.records if record.name == "millstream.pipeline"]
    assert (line["job"], line["rows_in"], line["rows_out"]) == (
        "batch-stream",
        done.messages,
        done.batches + done.rejected,
    )
    assert line["counts"]["late"] == done.rejects["late"]
    assert line["bytes"] == sum(len(body) for body, _, _ in written(log_url, plan.output))
    assert observed
    for number, seen in observed.items():
        trigger = triggers[number]
        assert (seen["batches"], seen["rejected"]) == (trigger.batches, trigger.rejected)
        assert (seen["late"], seen["open_sources"]) == (trigger.rejects.get("late", 0), trigger.open_sources)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_quiet_log_gets_a_tick_so_that_its_last_batches_close(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog, restarted: bool
) -> None:
    clock = SystemClock()
    now = clock.now()
    write_log(log_url, "untidy", [Message(b"", "k", "s", now, now)])
    rules, closed = Rulebook(BatchConfig(window=1000, max_delay=1000)), 0

    def count(trigger: Trigger) -> None:
        nonlocal closed
        closed += trigger.batches

    if restarted:
        assert run_stream(spark, plan_of(tmp_path, log_url, rules=rules), available_now=True).open_sources == 1
    deadline = clock.monotonic() + 240
    with open_store(log_url) as store:
        run_stream(
            spark,
            plan_of(tmp_path, log_url, rules=rules),
            stopped=lambda: closed > 0 or clock.monotonic() > deadline,
            on_trigger=count,
            ticks=idle_log_ticker(store.log(LogSpec("untidy")), clock),
        )
        assert store.log(LogSpec("untidy")).last_id == 2
    assert closed == 1


def test_p5_stream_and_service_continue_under_changed_rules_and_the_job_makes_the_same_again(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages, plan = in_order(untidy(5, 1200)), plan_of(tmp_path, log_url, per_trigger=200)
    write_log(log_url, "untidy", messages[:500])
    run_stream(spark, plan, available_now=True)
    with open_store(log_url) as store:
        logs = store.log(LogSpec("untidy")), store.log(LogSpec("batches"))
        rules = change_rules(*logs, FileDocument(plan.state), Rulebook(BatchConfig(20, 30)), clock=SystemClock())
    write_log(log_url, "untidy", messages[500:900])
    with pytest.raises(ConfigError, match="latest rules of log 'batches'"):
        run_stream(spark, plan, available_now=True)
    changed = msgspec.structs.replace(plan, rules=rules.current)
    run_stream(spark, changed, available_now=True)
    write_log(log_url, "untidy", messages[900:])
    serve(log_url, plan.state, "batches", rules.current)
    serve(log_url, tmp_path / "service.state", rules=rules)
    assert written(log_url, "batches") == written(log_url, "service")
    assert rules.later[-1].since < (messages[900].received_at or 0)
    assert verify_batches(spark, log_url, "untidy", "batches", rules).is_whole
    assert not verify_batches(spark, log_url, "untidy", "batches", RULES).is_whole
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules, flush=False)
    assert sorted(batch.batch for batch in job.batches()) == sorted(
        key for _, key, _ in written(log_url, "batches") if key
    )


CHANGED = Rulebook(BatchConfig(20, 30))


def test_p5_a_running_stream_continues_by_rules_that_are_requested_of_it(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.pipeline.jobs.batch_stream._LOOK", 0.05)
    monkeypatch.setattr("millstream.batching.rule_changes._REQUEST_SECONDS", 240)  # a busy machine ends a query slowly
    messages, plan = in_order(untidy(11, 1500)), plan_of(tmp_path, log_url, per_trigger=100)
    write_log(log_url, "untidy", messages[:700])
    triggers: list[Trigger] = []
    saved: list[tuple[int, bool]] = []
    first, answered = threading.Event(), threading.Event()
    changed: list[Rulebook] = []

    def note(trigger: Trigger) -> None:
        triggers.append(trigger)
        first.set()

    def change() -> None:
        first.wait(240)
        try:
            with open_store(log_url) as store:
                logs = store.log(LogSpec("untidy")), store.log(LogSpec("batches"))
                changed.append(request_change(*logs, FileDocument(plan.state), CHANGED, None, clock=SystemClock()))
                write_log(log_url, "untidy", messages[700:])
        finally:
            answered.set()

    thread = threading.Thread(target=change)
    thread.start()
    finished = lambda: answered.is_set() and (not changed or triggers[-1].last_id == len(messages))  # noqa: E731
    note_saved = lambda: saved.append((len(triggers), plan.state.exists()))  # noqa: E731
    done = run_stream(spark, plan, stopped=finished, on_trigger=note, on_saved=note_saved)
    thread.join()
    assert saved[0] == (0, True), "before the first trigger"
    assert len(saved) >= 4 and saved[-1][0] == len(triggers), "at each change of the rules and at the end, too"
    (rules,) = changed
    assert rules.current == CHANGED
    assert rules.later[-1].since < (messages[-1].received_at or 0)
    assert (done.position, done.messages) == (len(messages), len(messages))
    serve(log_url, tmp_path / "service.state", rules=rules)
    assert written(log_url, "batches") == written(log_url, "service")
    with pytest.raises(ConfigError, match="latest rules of log 'batches'"):
        run_stream(spark, plan, available_now=True)


def test_p5_a_stream_whose_log_was_taken_over_stops_and_leaves_the_changed_rules_and_the_state(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages, plan = in_order(untidy(12, 900)), plan_of(tmp_path, log_url, per_trigger=100)
    write_log(log_url, "untidy", messages[:200])
    run_stream(spark, plan, available_now=True)
    write_log(log_url, "untidy", messages[200:])
    left: list[bytes] = []

    def take_over(_: Trigger) -> None:
        if left:
            return
        with open_store(log_url) as store:
            backend, output = store._backend, store.log(LogSpec("batches"))
            backend.release_lease("batches", epoch=backend.head("batches").epoch)  # as if the stream had been suspended
            change_rules(store.log(LogSpec("untidy")), output, FileDocument(plan.state), CHANGED, clock=SystemClock())
        left.append(plan.state.read_bytes())

    with pytest.raises(PipelineError, match=r"another process has taken over log 'batches'.*start the stream again"):
        run_stream(spark, plan, stopped=lambda: bool(left), on_trigger=take_over)
    assert plan.state.read_bytes() == left[0]
    with open_store(log_url) as store:
        rules = read_rules(store.log(LogSpec("batches")))
    assert rules is not None
    run_stream(spark, msgspec.structs.replace(plan, rules=rules.current), available_now=True)
    serve(log_url, tmp_path / "service.state", rules=rules)
    assert written(log_url, "batches") == written(log_url, "service")
