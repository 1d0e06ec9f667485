"""The table of clients and flows in ``docs/messaging.md``, from what the last run of the clients noted."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from official.known import CLIENTS

from millstream.core.durable import file_lock

DOCUMENT = Path(__file__).parents[3] / "docs" / "messaging.md"
EXCHANGES = DOCUMENT.with_name("explanation") / "client-faults.md"
LINES = 6
PROOFS = """# Faults of official clients

This page shows faults of official RocketMQ clients, in the order of the numbered list below the [table of
tests](../messaging.md#official-clients). If a client lacks a function, the trace shows what preceded the call. Each
heading names the language, the version and the fault of a client. The text in italics is the expected behaviour.

After a restart of the broker, `orphan` in an error is a transactional message whose producer did not end the
transaction. The broker asks the clients about it on their telemetry streams, through which it sends commands. The
last messages contain no such question, because no client has opened a stream since.

The traces show the last messages between client and broker, with the seconds since the start of the broker. Long
lines are cut (`…`). `make test-clients` writes this page.
"""
BEGIN, END = "<!-- clients: written by make test-clients -->\n", "<!-- end of clients -->\n"


class Cell(msgspec.Struct, frozen=True):
    """What came of a flow, which is ``about`` something, with a client: ``yes``, ``its own`` fault, or ``failed``.

    Where it was the client's own, ``seen`` is how it failed, and ``exchange`` what it and the broker said meanwhile.
    """

    flow: str
    about: str
    client: str
    result: str
    text: str
    seen: str = ""
    exchange: Sequence[str] = ()


def note(cache: str, cell: Cell) -> None:
    """Keep *cell* for the table."""
    notes = Path(cache) / "cells.jsonl"
    with file_lock(notes.with_suffix(".lock")), notes.open("a", encoding="utf-8") as file:
        file.write(msgspec.json.encode(cell).decode() + "\n")


def render(cells: Sequence[Cell]) -> str:
    """The table of *cells*, of which the last of a place counts, with what each client does wrong itself below."""
    found = {(cell.flow, cell.client): cell for cell in cells}
    clients = [client.name for client in CLIENTS]
    flows = list(dict.fromkeys((cell.flow, cell.about) for cell in found.values()))
    notes: dict[str, int] = {}
    lines = [f"| behaviour | {' | '.join(clients)} |", f"|---|{'---|' * len(clients)}"]
    for flow, about in flows:
        row = [_cell(found.get((flow, client)), notes) for client in clients]
        lines.append(f"| {about.strip().rstrip('.')} | {' | '.join(row)} |")
    lines += ["", *(f"{number}. {text}" for text, number in notes.items())]
    return "\n".join(lines) + "\n"


def render_exchanges(cells: Sequence[Cell]) -> str:
    """What was said where a client failed by itself: for each such fault the end of the last exchange."""
    found = {cell.text: cell for cell in cells if cell.result == "its own"}
    parts = [PROOFS]
    for cell in found.values():
        fault = cell.text[:1].lower() + cell.text[1:].rstrip(".")
        expected = f"Expected behaviour: *{cell.about.strip()}* The test failed with this error:"
        parts += [f"## {cell.client}: {fault}", "", expected, "", "```text"]
        parts += [cell.seen[:600].rstrip(), "```", ""]
        if cell.exchange:
            parts += ["The last messages (`>` to the broker, `<` from the broker):", "", "```text"]
            parts += [*cell.exchange[-LINES:], "```", ""]
    return "\n".join(parts)


def _cell(cell: Cell | None, notes: dict[str, int]) -> str:
    if cell is None:
        return "–"
    if cell.result == "its own":
        return f"no ({notes.setdefault(cell.text, len(notes) + 1)})"
    return cell.result


def main(cache: Path) -> None:
    """Write the table into the document, and forget what was noted."""
    notes = cache / "cells.jsonl"
    cells = [msgspec.convert(json.loads(line), Cell) for line in notes.read_text("utf-8").splitlines()]
    text = DOCUMENT.read_text("utf-8")
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    assert pattern.search(text), f"{DOCUMENT} has no place for the table"
    EXCHANGES.write_text(render_exchanges(cells), "utf-8")
    DOCUMENT.write_text(pattern.sub(lambda _: BEGIN + "\n" + render(cells) + "\n" + END, text), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
