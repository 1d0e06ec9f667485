"""From a log to its anchors on Spark: every batch once, by history or by stream, whichever driver dies (promise P7)."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.anchoring import BatchWriter, replay
from millstream.anchoring.errors import AnchoringError, BatchFormatError
from millstream.anchoring.feed import AnchorFeed, encode_batches
from millstream.anchoring.journal import BatchJournal
from millstream.batching import BatchConfig, EventBatch, Rulebook
from millstream.batching.message_events import event_from_message
from millstream.batching.service import BatchService
from millstream.cli.main import run
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import Log, LogSpec
from millstream.node import Node
from millstream.node.spark import SparkPart
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.batch import run_batch
from millstream.settings import AnchoringSettings, Settings
from millstream.testing.batching_oracle import plain_batches
from millstream.testing.killed_programs import kill_at, killable_program
from millstream.testing.waiting import until
from suite.sizes import sized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Untidy = Callable[..., list[Message]]

RULES = Rulebook(BatchConfig(50, 20))
CONFIG = RULES.plain


class DiedError(Exception):
    """The driver, at the step that the test chose."""


def fill(node: Node, messages: list[Message], rules: BatchConfig) -> tuple[Log, Log]:
    """The log of *messages* and that of its batches, made by the service in process."""
    source, output = node.logs.store.log(LogSpec("in", block_messages=50)), node.logs.store.log(LogSpec("out"))
    with source.writer() as writer:
        writer.append(sorted(messages, key=lambda message: message.received_at or 0))
    service = BatchService(source, output, Rulebook(rules), FileDocument(node.folder / "state"), commit_every=64)
    service.step()
    service.close()
    return source, output


def emitted(output: Log) -> dict[str, list[int]]:
    """The message ids of each batch in the log *output*."""
    found = [json.loads(message.body) for batch in output.read() for message in batch]
    return {item["batch"]: item["events"] for item in found if "batch" in item}


def anchored(node: Node, batches: dict[str, list[int]]) -> dict[str, int]:
    """How often each of *batches* is anchored."""
    return {batch: len(node.anchoring.observer.index.find_batch("in", batch)) for batch in batches}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), deaths=st.lists(st.integers(0, 8), max_size=3))
def test_p7_a_feed_whose_driver_dies_anywhere_anchors_every_batch_once(
    seed: int, deaths: list[int], untidy: Untidy, rules: BatchConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    with Node.open(Settings(data=str(folder)), create=True) as node:
        fill(node, untidy(seed, 150), rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.anchoring.feed.GROUP_MESSAGES", 40)
        for steps in deaths:
            with Node.open(Settings(data=str(folder))) as node, pytest.MonkeyPatch.context() as fatal:
                die_after(fatal, steps)
                with contextlib.suppress(DiedError):
                    feed_of(node).step(force=True)
        with Node.open(Settings(data=str(folder))) as node:
            feed_of(node).step(force=True)
            assert feed_of(node).step(force=True).batches == 0
            batches = emitted(node.logs.store.log(LogSpec("out")))
            assert anchored(node, batches) == dict.fromkeys(batches, 1)
            assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()
            totals = node.anchoring.observer.index.totals()
            assert (totals.batches, totals.messages) == (len(batches), sum(map(len, batches.values())))


def feed_of(node: Node) -> AnchorFeed:
    source, output = node.logs.store.log(LogSpec("in")), node.logs.store.log(LogSpec("out"))
    return AnchorFeed(source, output, node.anchoring.batch_writer, RULES)


def die_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    left = iter(range(steps))

    def dying(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                raise DiedError
            return step(*args, **kwargs)

        return run

    patch.setattr(BatchWriter, "add", dying(BatchWriter.add))
    patch.setattr(Log, "set_pointer", dying(Log.set_pointer))
    patch.setattr(BatchJournal, "prepare", dying(BatchJournal.prepare))
    patch.setattr(BatchJournal, "anchored", dying(BatchJournal.anchored))


def test_messages_are_found_by_their_ids_wherever_they_lie(untidy: Untidy, rules: BatchConfig, tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        source, output = fill(node, untidy(1, 300), rules)
        batches = [msgspec.json.decode(m.body, type=EventBatch) for b in output.read() for m in b if m.key]
        encoded = encode_batches(source, batches[::-1])
        assert [one.ids for one in encoded] == [batch.events for batch in batches[::-1]]
        for one in encoded:
            assert [json.loads(line)["id"] for line in one.lines.splitlines()] == list(one.ids)
        assert encode_batches(source, []) == []


def test_what_is_no_batch_is_told_and_stops_no_other(
    untidy: Untidy, rules: BatchConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        _, output = fill(node, untidy(7, 60), rules)
        batches, end = emitted(output), output.last_id
        with output.writer() as writer:
            writer.append([b"\xff", b"{}", b'{"batch":"\xff"}', b'{"batch":"x","events":"all"}'])
        feed_of(node).step(force=True)
        assert anchored(node, batches) == dict.fromkeys(batches, 1)
        assert [record.args[0] for record in caplog.records] == [end + 1, end + 2, end + 3, end + 4]
        feed_of(node).step(force=True)
        assert len(caplog.records) == 4


def test_amendments_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.logs.store.log(LogSpec("in"))
        with node.logs.store.log(LogSpec("out")).writer() as writer:
            writer.append([b'{"batch":"b","kind":"amendment","events":[1]}'])
        with pytest.raises(BatchFormatError, match='late = "reject"'):
            feed_of(node).step()


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_p7_a_stream_that_is_killed_goes_on_and_anchors_what_a_log_that_went_quiet_has_left(
    tmp_path: Path, untidy: Untidy, rules: BatchConfig
) -> None:
    """The child is killed when it has made a number of anchors drawn at random; the last one is asked to end."""
    data, draw = tmp_path / "node", random.Random(6)
    messages = sorted(untidy(6, sized(ci=400, long=4000)), key=lambda message: message.received_at or 0)
    with Node.open(Settings(data=str(data)), create=True) as node:
        with node.logs.store.log(LogSpec("in", block_messages=50)).writer() as writer:
            writer.append(messages)
        events = [event_from_message(message) for part in node.logs.store.log(LogSpec("in")).read() for message in part]
        expected = {batch.batch: len(batch.events) for batch in plain_batches(events, rules)[0]}
    (data / "millstream.toml").write_text(
        '[batching]\nwindow = "50us"\nmax_delay = "20us"\nmax_count = 0\nmax_bytes = 0\n[anchoring]\nmax_batches = 20\n'
    )
    full = len(expected) // 20
    goals = sorted(draw.randrange(1, full - 1) for _ in range(sized(ci=1, long=5)))
    with Node.open(Settings(data=str(data))) as node:
        index = node.anchoring.observer.index
        for goal in goals:
            reached = lambda goal=goal: len(index.numbers()) >= goal  # noqa: E731
            if not reached():  # the driver before may have got further than its own goal
                kill_at(streaming(data), reached, "some anchors")
        with killable_program(streaming(data)) as child:
            until(lambda: index.totals().batches >= len(expected), "all batches", seconds=250)
            child.terminate()
            assert child.wait(120) == 0
        assert {batch: len(index.find_batch("in", batch)) for batch in expected} == dict.fromkeys(expected, 1)
        assert replay(node.anchoring.cas, node.anchoring.ledger, index).findings == ()
        assert (index.totals().batches, index.totals().messages) == (len(expected), sum(expected.values()))


def streaming(data: Path) -> list[str | Path]:
    """The command on the node in *data*."""
    command = ["pipeline", "anchor", "in", "--stream", "--output", "out", "--every", "1s", "--per-trigger", "60"]
    return [sys.executable, "-m", "millstream", *command, "--data", data]


on_spark = [pytest.mark.spark, pytest.mark.timeout(600)]


class TestOnSpark:
    pytestmark = on_spark

    @pytest.fixture
    def data(self, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
        @contextlib.contextmanager
        def shared(_: SparkPart, **_options: bool) -> Iterator[SparkSession]:
            yield spark

        monkeypatch.setattr(SparkPart, "session", shared)
        (tmp_path / "millstream.toml").write_text(
            '[batching]\nwindow = "50us"\nmax_delay = "20us"\nmax_count = 0\nmax_bytes = 0\n'
        )
        return tmp_path

    def test_p7_history_is_anchored_once_by_any_number_of_runs_and_by_a_stream_as_well(
        self, data: Path, untidy: Untidy, rules: BatchConfig, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with Node.open(Settings(data=str(data)), create=True) as node:
            fill(node, untidy(3, 600), rules)
            batches = emitted(node.logs.store.log(LogSpec("out")))
        options = ["--data", str(data), "--config", str(data / "millstream.toml"), "--json"]
        stream = ["--stream", "--output", "out", "--available-now"]
        told = []
        for more in ([], [], stream):
            assert run(["pipeline", "anchor", "in", *more, *options]) == 0
            told.append(json.loads(capfd.readouterr().out))
        first, again, streamed = told
        assert (first["batches"], first["anchors"] > 0) == (len(batches), True)
        assert [(one["batches"], one["anchors"], one["known"]) for one in (again, streamed)] == [
            (0, 0, len(batches)),
            (0, 0, len(batches)),
        ]
        assert first["head"] == again["head"] == streamed["head"]
        with Node.open(Settings(data=str(data))) as node:
            assert anchored(node, batches) == dict.fromkeys(batches, 1)
            assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()

    def test_tasks_make_the_anchors_that_the_batch_writer_makes_by_itself(
        self, data: Path, spark: SparkSession, untidy: Untidy, rules: BatchConfig
    ) -> None:
        with self.node(data, max_batches=30) as node, self.node(data / "other", max_batches=30) as other:
            fill(node, untidy(8, 900), rules)
            job = run_batch(spark, data / "jobs", node.settings.log_url, "in", rules)
            mine = anchor_history(
                job, "in", node.anchoring.batch_writer, CONFIG, spark=spark, cas=node.anchoring.cas_url
            )
            assert mine == anchor_history(job, "in", other.anchoring.batch_writer, CONFIG)
            assert mine.anchors > 3
            entries = [[entry.anchor_string for entry in one.anchoring.ledger.entries()] for one in (node, other)]
            assert entries[0] == entries[1]
            assert node.anchoring.observer.index.totals() == other.anchoring.observer.index.totals()
            assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()
            again = anchor_history(
                job, "in", node.anchoring.batch_writer, CONFIG, spark=spark, cas=node.anchoring.cas_url
            )
            assert (again.batches, again.anchors, again.known) == (0, 0, mine.batches)
            node.anchoring.journal.forget_anchored()  # as with `anchor observe --rebuild`
            again = anchor_history(job, "in", node.anchoring.batch_writer, CONFIG)
            assert (again.batches, again.anchors, again.known) == (0, 0, mine.batches)

    def test_p6_what_no_task_can_pack_goes_the_long_way_and_each_batch_comes_to_its_end(
        self, data: Path, spark: SparkSession, untidy: Untidy, rules: BatchConfig
    ) -> None:
        with self.node(data, max_batches=30, file_bytes=600) as node:
            fill(node, untidy(9, 600), rules)
            job = run_batch(spark, data / "jobs", node.settings.log_url, "in", rules)
            done = anchor_history(
                job, "in", node.anchoring.batch_writer, CONFIG, spark=spark, cas=node.anchoring.cas_url
            )
            totals = node.anchoring.journal.totals()
            assert totals.rejected > 0
            assert totals.observed + totals.rejected == done.batches == len(list(job.batches()))
            reasons = [reason for _, _, reason in node.anchoring.journal.rejected()]
            assert [one for one in reasons if "the limit of a batch file is 600" not in one] == []
            assert replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings == ()

    @staticmethod
    def node(folder: Path, **anchoring: int) -> Node:
        return Node.open(Settings(data=str(folder), anchoring=AnchoringSettings(**anchoring)), create=True)

    def test_rules_that_changed_make_other_batches_and_are_told(
        self, data: Path, untidy: Untidy, rules: BatchConfig
    ) -> None:
        with Node.open(Settings(data=str(data)), create=True) as node:
            source, output = fill(node, untidy(4, 50), rules)
            feed_of(node).step(force=True)
            with output.writer() as writer:
                known = next(m for b in output.read() for m in b if m.key)
                item = json.loads(known.body)
                item["events"] = item["events"][:-1] or [source.last_id]
                writer.append([Message(json.dumps(item).encode(), known.key)])
            with pytest.raises(AnchoringError, match="recorded with other messages"):
                feed_of(node).step(force=True)
