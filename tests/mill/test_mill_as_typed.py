"""The commands of stores and mill as somebody types them at a terminal: every example, the bars, results in a pipe."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from millstream.testing.waiting import until
from support.command_examples import example_lines

PROGRAM = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}
ITEMS = ("2013/a.jpg", "2013/b.jpg", "2013/c.jpg")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the stores and the space that the examples speak of; what they read is in the folder one is in."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    limits = '[mill.change_guard]\nleast = 1\n[mill]\naudit_log = "second:audit-log"\n'
    stores = [f'[stores.{name}]\nurl = "file://{folder}/{name}"\n' for name in ("primary", "second")]
    (folder / "millstream.toml").write_text("\n".join([*stores, limits]))
    (folder / "policies" / "duplication-accounts.json").write_text('["local"]')
    (folder / "policies" / "local-duplication-policy.json").write_text(json.dumps(POLICY))
    for name in ("primary", "second"):
        (folder / name).mkdir()
    source = LocalStore(folder / "primary")
    for space in ("photos", "backup"):
        source.create_space(space)
    for name in ITEMS:
        source.put("photos", name, io.BytesIO(name.encode() * 100))
    here = tmp_path / "here"
    (here / "2013").mkdir(parents=True)
    (here / "2013" / "d.jpg").write_bytes(b"d" * 100)
    (here / "policy.json").write_text(json.dumps(POLICY))
    monkeypatch.chdir(here)
    return folder


def typed(line: str, data: Path) -> int:
    """The exit code of what follows ``millstream`` in *line*."""
    return run([*shlex.split(line)[1:], "--data", str(data)])


ENDS = {"mill accept": 3, "mill approve 1": 3, "mill reject 2": 3, "mill produce bits": 12, "mill retire third": 3}
"""Exit codes that are not 0: nothing is protected or held, no store was removed, and workers make the checks first."""


def test_every_example_of_stores_and_mill_runs(data: Path) -> None:
    lines = [line for line in example_lines() if line.split()[1] in ("store", "mill") and "mill work" not in line]
    lines.sort(key=lambda line: line.split()[1], reverse=True)
    assert len(lines) > 25
    assert typed("millstream mill duplicate", data) == 0
    ended = {line: typed(line, data) for line in sorted(lines, key=deletes)}
    said = {line: next((code for part, code in ENDS.items() if part in line), 0) for line in lines}
    assert ended == said


def deletes(line: str) -> bool:
    return "store delete" in line or "mill forget" in line or "withdraw" in line


def watched(arguments: list[str], data: Path, *, piped: bool) -> tuple[int, str, bytes]:
    """The exit code of a command at a terminal, what the terminal showed, and what went into the pipe, if any."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments, "--data", str(data)],
        stdin=end,
        stdout=subprocess.PIPE if piped else end,
        stderr=end,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    ) as child:
        os.close(end)
        shown = b"".join(_shown(terminal))
        out = child.stdout.read() if child.stdout else b""
    os.close(terminal)
    return child.returncode, shown.decode(), out


def _shown(terminal: int) -> list[bytes]:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end was closed
            return parts
        if not part:
            return parts
        parts.append(part)


@pytest.mark.parametrize(
    ("command", "bar", "result"),
    [
        ("store put second photos 2013/ --create", "putting", b'"content_id":"d.jpg"'),
        ("mill duplicate", "tasks", b'"copies":3'),
        ("mill produce duplication --once", "spaces", b'"outcome":"done"'),
        ("mill check --store primary", "primary/photos", b'"result":"SUCCESS"'),
    ],
)
def test_a_bar_shows_how_far_it_is_and_never_gets_among_the_results(
    data: Path, command: str, bar: str, result: bytes
) -> None:
    if command.startswith("mill check"):
        assert typed("millstream mill duplicate", data) == 0
    code, shown, out = watched([*command.split(), "--json"], data, piped=True)
    assert code == 0
    assert bar in shown and "━" in shown
    assert result in out
    assert [json.loads(line) for line in out.splitlines()]


def test_a_repair_is_watched_at_a_terminal_and_leaves_its_result_there(data: Path) -> None:
    assert typed("millstream mill duplicate", data) == 0
    flip_bit(LocalStore(data / "second").path_of("photos", ITEMS[0]))
    assert typed("millstream mill check", data) == 1
    code, shown, _ = watched(["mill", "repair"], data, piped=False)
    assert code == 0
    assert "━" in shown and "tasks: 1 done, 0 retried, 0 dead" in shown


def test_workers_and_producers_run_until_they_are_stopped_and_show_what_is_done(data: Path) -> None:
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "mill", "work", "--produce", "--data", str(data)],
        stdin=end, stdout=end, stderr=end, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    ) as child:  # fmt: skip
        os.close(end)
        copies = LocalStore(data / "second")
        until(lambda: copies.has_space("photos") and len(copies.entries("photos")) == len(ITEMS), seconds=60)
        child.send_signal(signal.SIGTERM)
        shown = b"".join(_shown(terminal)).decode()
    os.close(terminal)
    assert child.returncode == 0
    assert " done (" in shown and " a second)" in shown
