"""Compares a log of batches with a log: were the batches made from the messages of this log, and by these rules?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_log_message import BatchLogMessage, decode_batch_log_message
from millstream.batching.identity import batch_id
from millstream.batching.message_columns import COLUMNS, event_columns
from millstream.batching.rulebook import Rulebook
from millstream.log import Gap, Log, StorageError
from millstream.log.errors import WHY_SHORTER

_MOST = 10_000
"""Newest messages of the output log that are read at most: they may be rejected messages, which say nothing of their
log."""


def is_made_from(output: Log, source: Log, *, has_state: bool = False) -> bool:
    """Whether the newest batch of *output* has the source and times of its messages in *source*.

    True also where this is unknown: there is no batch, or its messages were trimmed, are missing or damaged. With
    *has_state* also where it or they are in a tier that cannot be reached now: a program that continues from a state
    needs them for nothing else. Without it raises :class:`~millstream.log.StorageError` there.
    """
    try:
        batch = _newest_batch(output)
        if batch is None:
            return True
        ends = ((batch.events[0], batch.start), (batch.events[-1], batch.end))
        return all(_has(source, number, batch.source, time) for number, time in ends)
    except StorageError:
        if not has_state:
            raise
        return True


def is_made_by(rules: Rulebook, output: Log, source: Log, *, has_state: bool = False) -> bool:
    """Whether the newest batch of *output* has the id that *rules*, which were never changed, give for its messages.

    True also where this is unknown: there is no batch, or messages of it were trimmed, are missing or damaged. For
    *has_state* see :func:`is_made_from`.
    """
    try:
        batch = _newest_batch(output)
        members = None if batch is None else _members(source, batch.events)
    except StorageError:
        if not has_state:
            raise
        return True
    if batch is None or members is None:
        return True
    rows = [tuple(members[number][name] for name in _ROW) for number in batch.events]
    config = rules.chooser()(batch.source, rows[0][1])
    return batch_id(config, batch.source, rows, batch.kind) == batch.batch


_ANCHORED_IDS = (
    "If the lost messages were anchored, write new messages to a log of another name: no id of a log is anchored twice"
)


def foreign_batches(output: str, source: str) -> str:
    """The error where the batches of *output* were not made from *source*: see :func:`is_made_from`."""
    return (
        f"log {output!r} has batches of a log other than {source!r}, or of an earlier log with this name: batch that "
        "log, or choose a new output log"
    )


def other_rules(output: str, rules: Rulebook) -> str:
    """The error where the batches of *output* were made by rules other than *rules*: see :func:`is_made_by`."""
    return (
        f"the settings have the batching rules {rules.rules_text}, but log {output!r} has batches of other rules: "
        "restore the former rules in the settings, and the document batching/limits.json if it is missing"
    )


def shortened_source(output: str, source: Log, written: int) -> str:
    """The error where *output* has the batches of *source* up to message *written*, and *source* ends before it."""
    return (
        f"log {output!r} contains the batches of log {source.name!r} up to message {written}, but log {source.name!r} "
        f"now ends at {source.last_id}: {WHY_SHORTER}. Choose a new output log. {_ANCHORED_IDS}"
    )


def state_beyond_source(state: object, position: int, source: Log) -> str:
    """The error where the state *state* is at *position*, and *source* ends before it."""
    return (
        f"the state {state} of the batch service is at message {position} of log {source.name!r}, but this log now "
        f"ends at {source.last_id}: {WHY_SHORTER}. Restore the state from the same backup, or delete it to replay the "
        f"log. {_ANCHORED_IDS}"
    )


_ROW = ("event_time", "key", "digest", "received_at", "id", "size")


def _members(source: Log, numbers: Sequence[int]) -> dict[int, dict[str, Any]] | None:
    """The messages *numbers* of *source* as events, by their ids; None where one is not there any more."""
    first_id, last_id = min(numbers), max(numbers)
    if first_id < source.first_id or last_id > source.last_id:
        return None
    wanted, members = pa.array(numbers, pa.int64()), dict[int, dict[str, Any]]()
    for part in source.read(first_id, last_id, COLUMNS, gaps="all"):
        if isinstance(part, Gap):
            return None
        messages = part.arrow.select(COLUMNS)
        events = event_columns(messages.filter(pc.is_in(messages.column("id"), wanted)))
        members.update((event["id"], event) for event in events.to_pylist())
    return members


def _newest_batch(output: Log) -> BatchLogMessage | None:
    first_id = max(output.first_id, output.last_id - _MOST + 1)
    last_id, count = output.last_id, 1  # a batch may have megabytes: mostly the last message is one
    while last_id >= first_id:
        found = output.read(max(first_id, last_id - count + 1), last_id, ["body"], gaps="all")
        bodies = [body.as_py() for part in found if not isinstance(part, Gap) for body in part.arrow["body"]]
        for body in reversed(bodies):
            if (batch := _decoded(body)) is not None:
                return batch
        last_id, count = last_id - count, 2 * count
    return None


def _decoded(body: bytes) -> BatchLogMessage | None:
    """The batch in *body*; None for a rejected message, or what another program wrote."""
    try:
        message = decode_batch_log_message(body)
    except msgspec.DecodeError:
        return None
    return message if message.events else None


def _has(source: Log, number: int, name: str, time: int) -> bool:
    """Whether message *number* of *source* has this source and event time, or is not there any more."""
    if number < source.first_id:
        return True
    if number > source.last_id:
        return False
    (found,) = source.read(number, number, ["source", "event_time"], gaps="all")
    if isinstance(found, Gap):
        return True
    message = found.arrow.to_pylist()[0]
    return bool((message["source"], message["event_time"]) == (name, time))
