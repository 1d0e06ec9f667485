"""Verifying batches finds whatever was lost, added, doubled or altered, and nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.anchoring.batch_records import EncodedBatch
from millstream.batching import BatchConfig, Override, Rulebook
from millstream.batching.batch_log_origin import read_origin, write_origin
from millstream.batching.service import BatchService
from millstream.cli.main import run
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.batch import hand_over, run_batch
from millstream.pipeline.jobs.verify_batches import BatchVerification, verify_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]
RULES = Rulebook(BatchConfig(50, 20))


@pytest.fixture
def served(tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog) -> list[Message]:
    """A log and its batches, up to 100 messages before its end; the messages of the log of batches."""
    ordered = sorted(untidy(1, 1200), key=lambda message: message.received_at or 0)
    write_log(log_url, "untidy", ordered[:-100])
    with open_store(log_url) as store:
        source, output = store.log(LogSpec("untidy")), store.log(LogSpec("batches"))
        service = BatchService(source, output, RULES, FileDocument(tmp_path / "state"), commit_every=100)
        service.step()
        service.close()
        given = [message for batch in output.read() for message in batch]
    write_log(log_url, "untidy", ordered[-100:])
    return given


def verify(spark: SparkSession, url: str, output: str = "batches", **options: object) -> BatchVerification:
    return verify_batches(spark, url, "untidy", output, RULES, **options)  # type: ignore[arg-type]


def test_p5_what_a_service_gave_is_what_the_job_makes_again(
    spark: SparkSession, log_url: str, served: list[Message]
) -> None:
    found = verify(spark, log_url)
    assert found.is_whole
    assert (found.agreed, found.rejects_agreed) == (
        sum(1 for message in served if message.key),
        sum(1 for message in served if not message.key),
    )
    assert (found.differences, found.findings, found.unjudged) == ({}, (), 0)
    part = verify(spark, log_url, first_id=300, last_id=900)
    assert part.is_whole
    assert 0 < part.agreed < found.agreed
    assert (part.first_id, part.last_id) == (300, 900)


def test_what_is_missing_extra_different_or_doubled_is_named(
    spark: SparkSession, log_url: str, served: list[Message]
) -> None:
    batches = [message for message in served if message.key]
    rejects = [message for message in served if not message.key]
    stranger = Message(batches[3].body.replace(batches[3].key.encode(), b"f" * 64), "f" * 64)
    altered = Message(batches[2].body.replace(b'"closed_at":', b'"closed_at":1'), batches[2].key)
    kept = [*batches[1:2], altered, *batches[3:], *rejects[1:]]
    refused = json.loads(rejects[1].body)
    added = [batches[4], stranger, rejects[1], Message(b'{"rejected":5,"reason":"future"}')]
    with open_store(log_url) as store, store.log(LogSpec("wrong")).writer("batching") as writer:
        writer.append([Message(m.body, m.key) for m in [*kept, *added]], sequence=1100)
        strangers = writer.append([b"\xff", b"[]", b'{"batch":7}'])
    found = verify(spark, log_url, "wrong", last_id=1100)
    named = {(finding.kind, finding.batch) for finding in found.findings if finding.batch}
    expected = {("missing", batches[0].key), ("doubled", batches[4].key), ("extra", "f" * 64)}
    assert expected <= named
    told = {(finding.kind, finding.rejected) for finding in found.findings if finding.rejected}
    assert {("missing", json.loads(rejects[0].body)["rejected"]), ("doubled", refused["rejected"])} <= told
    assert ("extra", 5) in told
    assert [finding.message for finding in found.findings if finding.kind == "unreadable"] == list(strangers)
    assert not found.is_whole
    assert found.differences["unreadable"] == 3
    assert found.differences["missing"] in (1, 2)
    assert found.differences["doubled_rejects"] == 1


def test_p5_a_part_of_a_log_is_compared_under_policies_and_other_rules_for_some(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    rules = Rulebook(BatchConfig(5, 20, late="amend", grace=20), (Override(BatchConfig(3, 20), "station-1"),))
    ordered = sorted(untidy(2, 900, late=0.2, twice=0.3), key=lambda message: message.received_at or 0)
    write_log(log_url, "untidy", ordered)
    with open_store(log_url) as store:
        source, output = store.log(LogSpec("untidy")), store.log(LogSpec("many"))
        service = BatchService(source, output, rules, FileDocument(tmp_path / "many.state"), commit_every=60)
        service.step()
        service.close()
    for first_id, last_id in ((None, 500), (300, 800)):
        found = verify_batches(spark, log_url, "untidy", "many", rules, first_id=first_id, last_id=last_id)
        assert found.differences == {}
        assert found.agreed > 100
        assert found.rejects_agreed > 20


def test_p5_what_history_gave_before_it_handed_over_is_told_from_what_is_missing(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    ordered = sorted(untidy(7, 1200, late=0.1, twice=0.3), key=lambda message: message.received_at or 0)
    write_log(log_url, "untidy", ordered[:600])
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", RULES, flush=False)
    with open_store(log_url) as store:
        hand_over(job, store.log(LogSpec("batches")), FileDocument(tmp_path / "state"))
    write_log(log_url, "untidy", ordered[600:])
    with open_store(log_url) as store:
        service = BatchService(
            store.log(LogSpec("untidy")), store.log(LogSpec("batches")), RULES, FileDocument(tmp_path / "state")
        )
        service.step()
        service.close()
        given = [message for batch in store.log(LogSpec("batches")).read() for message in batch]
    found = verify(spark, log_url)
    assert (found.differences, found.unjudged) == ({}, 0)
    assert found.of_history == job.record.counts["batches"] > 100
    assert (found.agreed, found.rejects_agreed) == (
        sum(1 for message in given if message.key),
        sum(1 for message in given if not message.key),
    )
    across, after = verify(spark, log_url, first_id=300, last_id=900), verify(spark, log_url, first_id=700)
    assert (across.differences, after.differences) == ({}, {})
    assert across.agreed
    assert 0 < across.of_history < found.of_history
    with pytest.raises(PipelineInputError, match="'batches' has the batches of 'untidy' only after message 600"):
        verify(spark, log_url, last_id=600)
    with pytest.raises(PipelineInputError, match=r"only up to message \d+: choose an earlier first message"):
        verify(spark, log_url, first_id=10**6)
    _check_that_a_lost_batch_and_one_of_history_are_named(spark, log_url, given, next(iter(job.batches())))


def _check_that_a_lost_batch_and_one_of_history_are_named(
    spark: SparkSession, url: str, given: list[Message], of_history: EncodedBatch
) -> None:
    header = of_history.header
    body = {"batch": header.batch, "source": header.source, "start": header.start, "end": header.end}
    again = Message(json.dumps(body | {"closed_at": header.closed_at, "events": of_history.ids}).encode(), header.batch)
    lost = next(message for message in given if message.key)
    kept = [again, *(message for message in given if message.key != lost.key)]
    with open_store(url) as store:
        source, output = store.log(LogSpec("untidy")), store.log(LogSpec("wrong"))
        origin = read_origin(store.log(LogSpec("batches")))
        assert origin is not None
        write_origin(output, origin)
        with output.writer("batching") as writer:
            writer.append([Message(message.body, message.key) for message in kept], sequence=source.last_id)
    found = verify(spark, url, "wrong")
    named = {(finding.kind, finding.batch) for finding in found.findings}
    assert named == {("extra", header.batch), ("missing", lost.key)}
    with pytest.raises(PipelineInputError, match="'wrong' contains the batches of 'untidy', not of 'other'"):
        verify_batches(spark, url, "other", "wrong", RULES)


def test_a_log_without_batches_is_refused(spark: SparkSession, log_url: str, write_log: WriteLog) -> None:
    write_log(log_url, "untidy", [Message(b"", "k", "s", 1, 1)])
    write_log(log_url, "batches", [Message(b"x")])
    with pytest.raises(PipelineInputError, match="'batches' contains no batches"):
        verify(spark, log_url)


def test_the_command_says_in_its_exit_code_whether_all_agrees(
    spark: SparkSession,
    tmp_path: Path,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SparkPart, "session", lambda _, **__: contextlib.nullcontext(spark))
    url, data = f"sqlite:///{tmp_path / 'log.db'}", ["--data", str(tmp_path)]
    write_log(url, "untidy", [Message(b"1", "k", "s", hour * 3_600_000_000, hour * 3_600_000_000) for hour in range(9)])
    assert run(["batch", "serve", "--log", "untidy", "--output", "batches", "--once", *data]) == 0
    command = ["pipeline", "verify-batches", "untidy", "--batches", "batches", *data]
    assert run(command) == 0
    assert "the same; 8 batches" in capfd.readouterr().out
    with open_store(url) as store, store.log(LogSpec("batches")).writer() as writer:
        writer.append([next(m for batch in store.log(LogSpec("batches")).read() for m in batch)])
    assert run([*command, "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["differences"] == {"doubled": 1}
