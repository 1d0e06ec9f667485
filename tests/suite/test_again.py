"""A second run is for a few failed tests, and only for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite import again


def write_cache(folder: Path, tests: list[str], fault: str = "") -> None:
    cache = folder / again.CACHE
    other = cache.parents[1] / again.OTHER_FAULT
    for path, content in ((cache, dict.fromkeys(tests, True)), (other, fault)):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))


def write_test(folder: Path, body: str) -> None:
    (folder / "test_one.py").write_text(f"def test_one():\n    {body}\n")


def test_failed_tests_that_pass_the_second_time_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_test(tmp_path, "assert True")
    write_cache(tmp_path, ["test_one.py::test_one"])
    assert again.main(["-c", "/dev/null", "--rootdir", "."]) == 0
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert said.endswith("PASSED ONLY AT THE SECOND RUN, fix them:\n  test_one.py::test_one\n")


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_test(tmp_path, "assert False")
    write_cache(tmp_path, ["test_one.py::test_one"])
    assert again.main(["-c", "/dev/null", "--rootdir", "."]) == 1


@pytest.mark.parametrize(
    ("tests", "fault", "reason"),
    [
        ([], "", "another cause"),
        ([f"test_one.py::test_{number}" for number in range(again.LIMIT + 1)], "", "more than"),
        (["test_one.py::test_one"], "crash took 900 s", "crash took 900 s; failed tests are not run again"),
    ],
)
def test_nothing_runs_again_without_a_few_failed_tests(
    tests: list[str],
    fault: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cache(tmp_path, tests, fault)
    assert again.main([]) == 1
    assert reason in capfd.readouterr().out
