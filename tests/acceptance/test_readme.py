"""What the README tells a newcomer to type, works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from demo_runs import MILLSTREAM, Run

pytestmark = pytest.mark.acceptance

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
SECTION = README.partition("## A first log")[2].partition("\n## ")[0]


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.smoke
def test_the_commands_work_and_print_what_is_said(undisturbed: Run, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.data, tmp_path / "millstream-data", ignore=shutil.ignore_patterns("stores", "jobs"))
    lines = block("console").splitlines()
    script = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    expected = [line for line in lines if not line.startswith("$ ")]
    environment = os.environ | {"PATH": f"{MILLSTREAM.parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    assert all(line in printed for line in expected)
    assert expected


@pytest.mark.smoke
def test_the_python_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", block("python")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "1 [b'{\"bar\":1013}']\n"
