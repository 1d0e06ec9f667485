"""The demo on the user's own records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demo_runs import run_demo, stage

from support.commands import run_command

pytestmark = pytest.mark.acceptance

HOUR = 3_600_000_000


def test_own_records_pass_every_step_and_bad_rows_are_put_aside(tmp_path: Path) -> None:
    rows = [
        json.dumps({"source": f"pump{n % 3}", "key": f"k{n % 5}", "event_time": 10**15 + n * HOUR // 10, "value": n})
        for n in range(500)
    ]
    rows.insert(7, "this is not JSON")
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(rows) + "\n", "utf-8")
    data = tmp_path / "data"
    figures = run_demo(data, "--input", str(file), "--late", "0.1")
    assert figures["put_aside"] == 1
    assert json.loads((data / "demo" / "put-aside.jsonl").read_text())["line"] == 8
    counts = stage(figures, "batch")["counts"]
    assert counts["messages"] == stage(figures, "publish-records")["counts"]["messages"] >= 500
    assert counts["rejected"] > 10
    read = run_command("log", "read", "records", "--from", "1", "--max", "1", "--jsonl", "--data", str(data))
    assert json.loads(read.out)["key"].startswith("k")


@pytest.mark.parametrize(("name", "text"), [("bad.csv", "colour,size\nred,1\n"), ("bad.jsonl", "nothing here\n")])
def test_a_file_of_another_shape_is_refused_before_anything_is_written(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    answer = run_command("demo", "--input", str(tmp_path / name), "--data", str(tmp_path / "data"))
    assert answer.code == 2
    assert name in answer.err
    assert not (tmp_path / "data").exists()
