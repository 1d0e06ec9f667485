"""The tutorials, typed in as they stand, work and print what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks, follow_page

pytestmark = pytest.mark.acceptance

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PLAIN = ["first-road", "first-policy", "first-did"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_newcomer_can_follow_the_tutorial(name: str, tmp_path: Path) -> None:
    follow_page(TUTORIALS / f"{name}.md", tmp_path, forked=name != "first-road")


@pytest.mark.spark
def test_a_newcomer_can_follow_the_tutorial_on_spark(tmp_path: Path) -> None:
    follow_page(TUTORIALS / "first-spark-job.md", tmp_path, forked=False)
    assert follow_python(tmp_path) == "{'n': 200, 'top': 127}"


def follow_python(folder: Path) -> str:
    """What the Python of the tutorial prints, on the node that the commands have made."""
    code = next(
        text for language, text in blocks((TUTORIALS / "first-spark-job.md").read_text("utf-8")) if language == "python"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_every_tutorial_is_followed() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {*PLAIN, "first-spark-job"}
