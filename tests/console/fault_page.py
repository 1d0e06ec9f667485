"""The two tables of faults in ``docs/explanation/verdict.md``; the second is written by tests of the size ``long``."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from running_node import Row

from millstream.core.durable import file_lock
from suite.sizes import SIZE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "verdict.md"
BEGIN, END = "<!-- fault table -->\n", "<!-- end of the fault table -->\n"
COLUMNS = ("fault", "caused by", "kind", "message", "overview (s)", "metrics (s)", "status (s)", "gone (s)")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


def read_rows(text: str) -> dict[str, list[str]]:
    """The rows of the first table in *text*, without its head, by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    return {row[0]: row[1:] for row in cells}


def section(heading: str) -> str:
    """The text of the page below *heading*."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"## {heading}\n")
    return rest.partition("\n## ")[0].partition(BEGIN)[0]


def _generated() -> str:
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


DOCUMENTED = read_rows(section("Faults and detection times"))
BROWSER_TABLE = read_rows(_generated())


def write_row(row: Row, words: str, seconds: Mapping[str, float]) -> None:
    """Put what was measured into the table, at the size ``long``."""
    if SIZE != "long":
        return
    plain = re.sub(r"(?<![\w:/.])/\S+/", "…/", words)
    plain = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "…", plain)
    plain = re.sub(r"\(?\d{4}-\d\d-\d\d[T ][\d:.]+Z?\)?", "…", plain)[:240].replace("|", "/")
    figures = [f"{seconds[name]:.1f}" for name in ("overview", "metrics", "status", "gone")]
    with file_lock(Path(tempfile.gettempdir()) / f"millstream-fault-table-{os.getuid()}.lock"):
        found = read_rows(_generated())
        found[row.fault] = [row.caused, f"`{row.kind}`", plain, *figures]
        lines = "".join(f"| {' | '.join([fault, *found[fault]])} |\n" for fault in sorted(found))
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{HEAD}{lines}{END}{rest.partition(END)[2]}", "utf-8")
