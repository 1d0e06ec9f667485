"""The tutorials, typed in as they stand, work and print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PLAIN = ["first-road", "first-policy", "first-did"]
BLOCK = re.compile(r"```(console|python)\n(.*?)```", re.DOTALL)
MARK = "#### "


def steps(name: str) -> list[tuple[str, list[str]]]:
    """The commands of a tutorial, each with the lines that it should print."""
    found: list[tuple[str, list[str]]] = []
    for language, text in BLOCK.findall((TUTORIALS / f"{name}.md").read_text("utf-8")):
        if language == "python":
            continue
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def follow(name: str, folder: Path) -> list[list[str]]:
    """What each command of the tutorial prints, one after the other in one shell."""
    script = "".join(f"echo '{MARK}'\n{command}\n" for command, _ in steps(name))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MILLSTREAM_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    result = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [part.splitlines()[1:] for part in f"\n{result.stdout}".split(f"\n{MARK}")[1:]]


def matches(said: list[str], printed: list[str]) -> bool:
    """Whether *printed* is what was *said*: an ellipsis is anything in a line, and one alone is any lines."""
    pattern = r"\n".join(".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in said)
    return re.fullmatch(pattern, "\n".join(printed), re.DOTALL) is not None


def check(name: str, folder: Path) -> None:
    printed = follow(name, folder)
    wrong = [
        (command, said, lines)
        for (command, said), lines in zip(steps(name), printed, strict=True)
        if said and not matches(said, lines)
    ]
    assert not wrong


@pytest.mark.parametrize("name", PLAIN)
def test_a_newcomer_can_follow_the_tutorial(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_newcomer_can_follow_the_tutorial_on_spark(tmp_path: Path) -> None:
    check("first-spark-job", tmp_path)
    assert follow_python(tmp_path) == "{'n': 200, 'top': 127}"


def follow_python(folder: Path) -> str:
    """What the Python of the tutorial prints, on the node that the commands have made."""
    code = next(
        text
        for language, text in BLOCK.findall((TUTORIALS / "first-spark-job.md").read_text("utf-8"))
        if language == "python"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_every_tutorial_is_followed() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {*PLAIN, "first-spark-job"}
