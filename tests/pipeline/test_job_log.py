"""What a finished job leaves behind: one line, once, in canonical JSON."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from millstream.core.canonical import canonical_json
from millstream.node import Node
from millstream.pipeline.job_log import LOGGER, job_log_file
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.settings import Settings

RECORD = JobRecord(
    job="count", inputs={"log": "wéather"}, rows_in=10, rows_out=9, bytes=100, seconds=0.5, counts={"late": 1}
)


def test_each_job_is_one_line_of_canonical_json(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "jobs.jsonl"
    level = logging.getLogger(LOGGER).level
    with job_log_file(path):
        log_record(RECORD)
        logging.getLogger(LOGGER).warning("no job")
        log_record(RECORD)
    log_record(RECORD)
    first, second = path.read_bytes().splitlines()
    assert first == second == canonical_json(msgspec.json.decode(first))
    told = msgspec.json.decode(first)
    assert {name: told[name] for name in ("job", "rows_in", "rows_out", "bytes", "seconds")} == {
        "job": "count", "rows_in": 10, "rows_out": 9, "bytes": 100, "seconds": 0.5,
    }  # fmt: skip
    assert logging.getLogger(LOGGER).level == level


def test_a_node_keeps_the_lines_of_its_jobs_once_however_many_sessions_it_has(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.spark.session()
        node.spark.session()
        log_record(RECORD)
    log_record(RECORD)
    assert len((tmp_path / "jobs" / "jobs.jsonl").read_text().splitlines()) == 1
