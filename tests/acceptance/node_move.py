"""A node's tables are moved to a database server and back while the move is killed again and again.

``PYTHONPATH=tests/acceptance:tests python node_move.py FOLDER DATABASE ROWS SEED`` takes the node in FOLDER, such as
that of a demo, or makes a small one there, and adds ROWS rows to its manifest. It moves the tables to a server of its
own (DATABASE is ``postgresql`` or ``mariadb``) with ``millstream node move``, and back to a new file. Each move is
killed ten times with ``kill -9``: while it copies, and while it compares. Checks say the same before and after each.
A summary is printed as JSON: of each move the seconds and the peak memory (MiB) of its processes, and rows a second.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from test_node_on_server import make_node, write_letters

from millstream.cli.main import run
from millstream.core.clock import SystemClock
from millstream.core.database_server import open_server
from millstream.core.sqlite_file import open_database
from millstream.mill.manifest import Manifest
from millstream.mill.manifest_table import AddedItems
from millstream.node import Node
from millstream.node.databases import TABLES
from millstream.node.moving import UnfinishedMoveError, require_finished
from millstream.settings import load_settings
from millstream.testing import services

KILLS = 10
SPACE = "archive"
_PAGE = 2_000  # rows of a line that the move prints
_GROUP = 10_000
_ARCHIVED = re.compile(r"(/cas: [A-Z]+: )\d+ listed, (\d+ checked, )\d+ explained, (\d+ failed, )[0-9.]+ \w+ read, ")
CHECKS = ("anchor verify", "anchor replay", "mill check", "mill reconcile")


class Move(NamedTuple):
    """What a move with all its kills took: seconds, peak memory of a process (MiB), and rows that were moved."""

    seconds: float
    memory: float
    kills: int
    rows: int


class KillPoint(NamedTuple):
    """Kill the move when it has printed so many *lines* with the word *done*."""

    done: str
    lines: int


def add_rows(folder: Path, rows: int) -> None:
    """Add *rows* to the manifest of the node in *folder*: items of a space of two stores that no check looks at."""
    with Node.open(load_settings({"data": str(folder)})[0]) as node:
        writer = Manifest(node.databases.own).writer
        for start in range(0, rows // 2, _GROUP):
            names = [f"scans/{number:09}.tif" for number in range(start, min(start + _GROUP, rows // 2))]
            sums = [hashlib.sha256(name.encode()).hexdigest() for name in names]
            sizes, kinds = list(range(start, start + len(names))), ["image/tiff"] * len(names)
            for store in ("offline-1", "offline-2"):
                writer.record_added(AddedItems(store, SPACE, start + 1, names, sums, sizes, kinds))


def look(folder: Path) -> Mapping[str, Any]:
    """What the checks say, and a checksum over the manifest.

    A move to a server puts the reports of the node into its content-addressed storage: how many files the check of that
    space lists and reads, beside those that it has to check, is left out.
    """
    found = dict[str, Any]()
    for line in CHECKS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            found[line] = run([*line.split(), "--data", str(folder)]), _ARCHIVED.sub(r"\1\2\3", out.getvalue())
    with Node.open(load_settings({"data": str(folder)})[0]) as node:
        digest, rows = hashlib.sha256(), 0
        for batch in Manifest(node.databases.own).batches(space=SPACE):
            rows += len(batch)
            digest.update(msgspec.json.encode(batch.to_pydict()))
        found["manifest"] = rows, digest.hexdigest()
    return found


def move(folder: Path, target: str, points: list[KillPoint]) -> Move:
    """Move the tables of the node in *folder* to *target*, killed at each of *points* first."""
    seconds, memory, clock = 0.0, 0.0, SystemClock()
    for point in [*points, None]:
        started, last = clock.monotonic(), deque[str](maxlen=3)
        with _printing(["node", "move", target, "--json", "--data", str(folder)]) as (process, lines):
            for line in _until(point, lines):
                memory = max(memory, _peak_memory(process.pid))
                last.append(line)
            if point is not None:
                process.kill()
            code = process.wait()
        seconds += clock.monotonic() - started
        if point is None:
            assert code == 0, last
        else:
            assert code == -signal.SIGKILL, f"ended before {point}: {last}"
            with pytest.raises(UnfinishedMoveError), _opened(folder, target) as engine:
                require_finished(engine)
    tables = json.loads((folder / "move.json").read_text())["tables"]
    return Move(round(seconds, 1), round(memory, 1), len(points), sum(table["rows"] for table in tables))


def _peak_memory(process: int) -> float:
    """In MiB; 0 of one that has ended. (What the kernel says of it afterwards counts this program's own, too.)"""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text("ascii"))
    return int(found[1]) / 1024 if found else 0.0


def _until(point: KillPoint | None, lines: Iterator[str]) -> Iterator[str]:
    """*lines* until *point* is reached; all of them without one."""
    reached = 0
    for line in lines:
        yield line
        reached += point is not None and point.done in line
        if point is not None and reached == point.lines:
            return


@contextlib.contextmanager
def _printing(words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[str]]]:
    """``millstream`` with *words*, and the lines that it prints to a terminal."""
    ours, theirs = pty.openpty()
    out = Path(words[-1]) / "move.json"
    with out.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "millstream", *words], stdout=file, stderr=theirs)
    os.close(theirs)
    try:
        yield process, _lines(ours)
    finally:
        os.close(ours)


def _lines(terminal: int) -> Iterator[str]:
    with open(terminal, "rb", buffering=0, closefd=False) as file:
        rest = b""
        while True:
            try:
                data = file.read(4096)
            except OSError as error:
                if error.errno != errno.EIO:  # so ends a terminal that nobody has open any more
                    raise
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode() for line in whole)


@contextlib.contextmanager
def _opened(folder: Path, target: str) -> Iterator[Any]:
    engine = open_database(folder / "node.db", TABLES) if target == "file" else open_server(target)
    try:
        yield engine
    finally:
        engine.dispose()


def draw_points(draw: random.Random, rows: int, kills: int) -> list[KillPoint]:
    """Seven of ten *kills* while rows are copied, in order, and three while they are compared."""
    copying = kills * 7 // 10
    pages = rows // _PAGE
    points = [KillPoint("copied", draw.randint(1, max(1, pages // kills))) for _ in range(copying)]
    return points + [KillPoint("compared", draw.randint(1, max(1, pages * 9 // 10))) for _ in range(kills - copying)]


def walk(folder: Path, database: str, rows: int, seed: int, kills: int = KILLS) -> Mapping[str, Any]:
    """There and back: the summary. Raises ``AssertionError`` where anything differs."""
    draw = random.Random(seed)
    if not (folder / "node.db").exists():
        write_letters(folder.with_name(folder.name + "-files"), 20)
        make_node(folder, folder.with_name(folder.name + "-files"))
    add_rows(folder, rows)
    settings, expected = (folder / "millstream.toml").read_text(), look(folder)
    with services.private(database) as server:
        url = server.url + "node"
        there = move(folder, url, draw_points(draw, rows, kills))
        (folder / "millstream.toml").write_text(f'[node]\ndatabase = "{url}"\n{settings}')
        (folder / "node.db").rename(folder / "node.db-moved")
        between = look(folder)
        back = move(folder, "file", draw_points(draw, rows, kills))
    (folder / "millstream.toml").write_text(settings)
    after = look(folder)
    assert between == expected, _difference(between, expected)
    assert after == expected, _difference(after, expected)
    given = {"database": database, "rows": rows, "seed": seed, "checks": expected}
    moves = {"there": there, "back": back}
    return given | {
        name: one._asdict() | {"rows a second": round(one.rows / one.seconds)} for name, one in moves.items()
    }


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{key}: {found[key]} instead of {expected[key]}" for key in expected if found[key] != expected[key]
    )


def main(folder: str, database: str, rows: str, seed: str) -> None:
    """Walk, and print the summary."""
    print(json.dumps(walk(Path(folder), database, int(float(rows)), int(seed)), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
