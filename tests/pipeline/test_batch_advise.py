"""``millstream batch advise``: many rules tried in one job."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.batching import BatchConfig, Batcher
from millstream.batching.message_events import event_from_message
from millstream.cli.main import run
from millstream.core.message import Message
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.job_log import job_log_file
from millstream.pipeline.jobs.advise import try_rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


def test_every_set_of_rules_gets_the_figures_of_a_batcher(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages = write_log(log_url, "untidy", untidy(1, 800, sources=20))
    choices = [
        BatchConfig(window, 20, late=late, grace=grace) for window, late, grace in [(5, None, None), (50, "side", 60)]
    ]
    with job_log_file(tmp_path / "jobs.jsonl"):
        tried = try_rules(spark, log_url, "untidy", choices)
    (line,) = map(json.loads, (tmp_path / "jobs.jsonl").read_text().splitlines())
    assert (line["job"], line["rows_in"], line["rows_out"]) == ("batch-advise", len(messages), len(choices))
    assert (tried.first_id, tried.last_id) == (1, len(messages))
    for config, figures in zip(choices, tried.figures, strict=True):
        batcher = Batcher.of(config)
        outcomes = [batcher.receive_many(map(event_from_message, messages)), batcher.flush()]
        assert figures.records == len(messages)
        assert figures.groups == sum(len(outcome.batches) for outcome in outcomes)
        assert figures.late == sum(reject.reason == "late" for outcome in outcomes for reject in outcome.rejects)


def test_the_command_draws_the_trade_off_and_gives_advice(
    spark: SparkSession,
    tmp_path: Path,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SparkPart, "session", lambda _, **__: contextlib.nullcontext(spark))
    write_log(f"sqlite:///{tmp_path / 'log.db'}", "untidy", untidy(2, 300))
    command = ["batch", "advise", "untidy", "--data", str(tmp_path), "--windows", "20us,50us"]
    command += ["--max-delays", "5us,20us", "--late", "amend,reject"]
    assert run([*command, "--json"]) == 0
    tried = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["window"], one["max_delay"], one["late_policy"]) for one in tried] == [
        (window, delay, late) for late in ("reject", "amend") for window in (20, 50) for delay in (5, 20)
    ]
    assert sum(one["recommended"] for one in tried) == 1
    assert all(one["late_share"] <= 1 for one in tried)
    assert run(command) == 0
    shown = capfd.readouterr().out
    assert "Recommended: window = " in shown
    assert "◆" in shown
    assert run([*command[:-1], "never"]) == 2
    assert run([*command, "--grace", "soon"]) == 2


def test_nothing_to_try_is_refused(spark: SparkSession, log_url: str) -> None:
    with pytest.raises(PipelineInputError, match="no rules to compare"):
        try_rules(spark, log_url, "untidy", [])
