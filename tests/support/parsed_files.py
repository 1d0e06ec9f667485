"""What the tasks of an ingest make of files, without Spark."""

from __future__ import annotations

from pathlib import Path

from millstream.core.message import Message
from millstream.pipeline.planning.source_files import cuts_of, find_files, splits_of
from millstream.pipeline.tasks.file_parsing import ParsingRules, RefusedRow, parse_split


def parsed(folder: Path, rules: ParsingRules) -> tuple[list[Message], list[RefusedRow]]:
    """The messages and the rejected rows of the files in *folder* by *rules*."""
    messages: list[Message] = []
    refused: list[RefusedRow] = []
    for split in splits_of((file, cuts_of(file)) for file in find_files([folder])):
        for found in parse_split(split, rules):
            if isinstance(found, list):
                refused += found
            else:
                rows = found.to_pylist()
                for row in rows:
                    row["headers"] = tuple((h["name"], h["value"]) for h in row["headers"])
                messages += [Message(**row) for row in rows]
    return messages, refused
