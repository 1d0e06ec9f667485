"""Labels of table cells, so that style sheets alone can show a row as a card with the name of each column."""

from __future__ import annotations

import re
from itertools import count

FOLD = 4
"""A table of so many columns becomes a list of cards on a phone, as one does that has the class ``fold`` already."""

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ROW_OR_CELL = re.compile(r"<(tr|td|th)\b([^>]*)")


def label_cells(html: str) -> str:
    """*html*, where each cell of a table with a head has the name of its column as the attribute ``data-label``."""
    return _TABLE.sub(lambda found: _labelled(found[0]), html)


def _labelled(table: str) -> str:
    head, end, body = table.partition("</thead>")
    if not end:
        return table
    names = [" ".join(_TAG.sub("", name).split()).replace('"', "&quot;") for name in _HEAD.findall(head)]
    cells = count()

    def label(found: re.Match[str]) -> str:
        nonlocal cells
        if found[1] == "tr":
            cells = count()
            return found[0]
        place = next(cells)
        if place >= len(names) or "colspan" in found[2]:
            return found[0]
        return f'<{found[1]} data-label="{names[place]}"{found[2]}'

    return _folded(head, len(names)) + end + _ROW_OR_CELL.sub(label, body)


def _folded(head: str, columns: int) -> str:
    start, _, rest = head.partition(">")
    if columns < FOLD or "fold" in start:
        return head
    folded = start.replace('class="', 'class="fold ', 1) if 'class="' in start else f'{start} class="fold"'
    return f"{folded}>{rest}"
