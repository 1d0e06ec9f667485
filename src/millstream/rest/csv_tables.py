"""Tables as CSV (RFC 4180), for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.rest.endpoint import Listing

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(listing: Listing[Any], kind: type[Any]) -> bytes:
    """The items of *listing* (structs of *kind*) with a line of names.

    What is not a plain value is JSON. Text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    names = [field.name for field in msgspec.structs.fields(kind)]
    writer.writerow(names)
    for item in listing.items:
        values: dict[str, Any] = msgspec.to_builtins(item)
        writer.writerow([_cell(values.get(name)) for name in names])
    return out.getvalue().encode("utf-8")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, dict | Sequence):
        return msgspec.json.encode(value).decode("utf-8")
    return str(value)
