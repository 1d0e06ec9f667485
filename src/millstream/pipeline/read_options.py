"""The checked options of our data sources: which part of a log to read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from millstream.core.message import MESSAGE_SCHEMA
from millstream.core.timestamps import to_microseconds
from millstream.log import Log
from millstream.pipeline.errors import PipelineInputError

PARTITION_BYTES = 32_000_000
"""The target size of a partition, in bytes of blocks plus 50 for each message: about a second of work, because the
fixed cost of a task is a hundredth of that."""

TASKS_A_CORE = 3
"""A log that is worth as many tasks has so many for each core: a core that is done early takes another."""


OPTIONS = (
    "store", "log", "from", "to", "since", "until", "columns", "partitionBytes", "leastPartitions", "quarantine",
    "maxMessagesPerTrigger", "maxBytesPerTrigger", "barrier", "staging", "write",
)  # fmt: skip
"""The options of the data source ``millstream``."""


_OF_SPARK = {"path", "paths", "checkpointlocation", "queryname", "serialization.format"}
"""Options that Spark itself hands to every data source, in lower case."""


class LogReadOptions:
    """The options of the data source ``millstream`` (:class:`millstream.pipeline.source.LogDataSource`).

    Raises :class:`PipelineInputError` for an option that there is not, and for values that cannot be.
    """

    known: Sequence[str] = OPTIONS

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names(options, self.known)
        self.store = required(options, "store")
        self.log = required(options, "log")
        self.first_id: int | None = whole(options, "from", None)
        self.last_id: int | None = whole(options, "to", None)
        self.since, self.until = _time(options, "since"), _time(options, "until")
        for one, other in (("from", "since"), ("to", "until")):
            if options.get(one) and options.get(other):
                raise PipelineInputError(f"options {one!r} and {other!r} cannot be combined: give one of them")
        self.partition_bytes: int = whole(options, "partitionBytes", PARTITION_BYTES)
        self.least_partitions: int = whole(options, "leastPartitions", TASKS_A_CORE * (os.cpu_count() or 1))
        self.per_trigger: int | None = whole(options, "maxMessagesPerTrigger", None)
        self.bytes_per_trigger: int | None = whole(options, "maxBytesPerTrigger", None)
        self.barrier: int = whole(options, "barrier", 0)
        self.quarantine = options.get("quarantine", "")
        names = MESSAGE_SCHEMA.names
        self.columns = checked_columns(_listed(options["columns"])) if "columns" in options else names

    def first_of(self, log: Log) -> int | None:
        """The first id of *log* that is asked for, by its id or its time of receipt; None where that is not said."""
        return self.first_id if self.since is None else log.first_id_since(self.since)

    def last_of(self, log: Log) -> int | None:
        """The last id of *log* that is asked for, which may be one before the first; None where that is not said."""
        return self.last_id if self.until is None else log.first_id_since(self.until) - 1


def check_names(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise :class:`PipelineInputError` where *options* has a name that is neither in *known* nor Spark's own."""
    expected = {name.lower(): name for name in known}
    unknown = [name for name in options if name.lower() not in expected and name.lower() not in _OF_SPARK]
    if unknown:
        near = difflib.get_close_matches(unknown[0].lower(), expected, 1)
        meant = f": did you mean {expected[near[0]]!r}?" if near else "."
        raise PipelineInputError(f"unknown option {unknown[0]!r}{meant} The options are {', '.join(known)}")


def checked_columns(names: Sequence[str]) -> list[str]:
    """*names*, all of them columns of a message, each once. Raises :class:`PipelineInputError` otherwise."""
    unknown = [name for name in names if name not in MESSAGE_SCHEMA.names]
    if unknown or not names:
        problem = f"unknown columns {', '.join(map(repr, unknown))}" if unknown else "no columns are named"
        raise PipelineInputError(f"option 'columns': {problem}; a message has {', '.join(MESSAGE_SCHEMA.names)}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PipelineInputError(f"option 'columns': {', '.join(twice)} is named more than once; name each column once")
    return list(names)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _time(options: Mapping[str, str], name: str) -> int | None:
    """The option *name*, a time, in microseconds since the epoch. Raises :class:`PipelineInputError`."""
    text = options.get(name)
    if text is None or text.removeprefix("-").isdecimal():
        return None if text is None else int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise PipelineInputError(
            f"option {name!r}: invalid time {text!r}: write 2013-01-31T12:00Z, or microseconds since the epoch"
        ) from error
    return to_microseconds(time)


def required(options: Mapping[str, str], name: str) -> str:
    """The option *name*. Raises :class:`PipelineInputError` where it is missing."""
    value = options.get(name)
    if not value:
        raise PipelineInputError(f"option {name!r} is missing: add .option({name!r}, …)")
    return value


def whole(options: Mapping[str, str], name: str, default: Any) -> Any:
    """The option *name*, a whole number of at least 1; without it *default*. Raises :class:`PipelineInputError`."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise PipelineInputError(f"option {name!r}: {text!r} must be a whole number of at least 1")
    return int(text)
