"""A newcomer with an empty environment and nothing but the README and the tutorials."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from pages import follow, follow_page, matches, steps

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
TUTORIALS = ("first-road", "first-policy", "first-did", "first-spark-job")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_from_the_clone_to_a_proof_with_an_empty_environment(size: str, tmp_path: Path) -> None:
    """``make demo`` in a new clone prints what the README says, and each page works with what that installed."""
    if size != "long":
        pytest.skip("a clone of its own installs everything anew: make test-long")
    clone, home = tmp_path / "millstream", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    plain |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}  # where packages come from
    printed = subprocess.run(
        ["make", "--no-print-directory", "demo"], cwd=clone, env=plain, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    readme = (clone / "README.md").read_text("utf-8")
    said = re.search(r"```text\n(.*?)```", readme, re.DOTALL)
    assert said
    assert _stages(said[1]) == _stages(printed)

    there = plain | {"PATH": f"{clone / '.venv' / 'bin'}:{plain['PATH']}"}
    section = steps(readme.partition("## A first log")[2].partition("\n## ")[0])
    results = follow([command for command, _ in section], clone, there)
    assert all(matches(lines, found) for (_, lines), found in zip(section, results, strict=True) if lines)
    for name in TUTORIALS:
        folder = tmp_path / name
        folder.mkdir()
        follow_page(clone / "docs" / "tutorials" / f"{name}.md", folder, environment=there)


def _stages(text: str) -> list[str]:
    """What a demo's table says was done, without how long it took; and of messages, how many.

    How many files there are to copy depends on the machine's Python.
    """
    found = re.findall(r"^(\S.*?)  +([\d,]+ [a-z].*?)  +[\d.]+  ", text, re.MULTILINE)
    return [f"{stage}: {what}" if "messages" in what else stage for stage, what in found]
