"""Following a page of the documentation: its commands in one shell, its settings where it says, its output compared."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.forked_commands import forked_commands

BLOCK = re.compile(r"^ *```(console|toml|python)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
MARK = "#### "
FILE = re.compile(r"# in (\S+)")


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of a page that somebody types in: language and text, without the indentation of lists."""
    found = []
    for language, block in BLOCK.findall(text):
        margin = min(len(line) - len(line.lstrip()) for line in block.splitlines() if line.strip())
        found.append((language, "".join(line[margin:] + "\n" for line in block.splitlines())))
    return found


def steps(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a page, each with the lines that it should print; settings are appended to their file.

    Settings whose block does not begin with the name of a file (``# in millstream-data/millstream.toml``) are examples.
    """
    found: list[tuple[str, list[str]]] = []
    for language, block in blocks(text):
        if language == "toml" and (file := FILE.match(block)):
            found.append((f"cat >> {file[1]} <<'END'\n{block}END", []))
        for line in block.splitlines() if language == "console" else ():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def follow(commands: list[str], folder: Path, environment: Mapping[str, str]) -> list[list[str]]:
    """What each of *commands* prints, one after the other in one shell in *folder*."""
    script = "".join(f"echo '{MARK}'\n{command}\n" for command in commands)
    shell = subprocess.Popen(
        ["bash", "-eu", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = shell.communicate(timeout=560)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
    assert shell.returncode == 0, out + err
    return [part.splitlines()[1:] for part in f"\n{out}".split(f"\n{MARK}")[1:]]


def _ours(*programs: Path) -> dict[str, str]:
    """The environment of the tests, with *programs* and then their own programs before any other."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MILLSTREAM_")}
    folders = [*map(str, programs), str(Path(sys.executable).parent), environment["PATH"]]
    return environment | {"PATH": ":".join(folders)}


def matches(said: list[str], printed: list[str]) -> bool:
    """Whether *printed* is what was *said*: an ellipsis is anything in a line, and one alone is any lines."""
    pattern = r"\n".join(".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in said)
    return re.fullmatch(pattern, "\n".join(printed), re.DOTALL) is not None


def follow_page(
    page: Path,
    folder: Path,
    told: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    forked: bool = True,
) -> None:
    """Follow *page* in *folder*, with what *told* has in place of its examples; assert that it prints what it says.

    Where commands are *forked*, and no *environment* is given, they do not start anew, which takes less time.
    """
    text = page.read_text("utf-8")
    for example, real in (told or {}).items():
        assert example in text, example
        text = text.replace(example, real)
    found = steps(text)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(forked_commands())] if forked and environment is None else []
        printed = follow([command for command, _ in found], folder, environment or _ours(*programs))
    wrong = [
        (command, said, lines)
        for (command, said), lines in zip(found, printed, strict=True)
        if said and not matches(said, lines)
    ]
    assert not wrong
