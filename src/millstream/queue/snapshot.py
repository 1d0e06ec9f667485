"""Snapshots of a queue's state in its own log, so that opening a queue does not read its whole history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.core.message import Message
from millstream.log import Log, TrimmedError
from millstream.queue.events import (
    PUT,
    DamagedQueueError,
    Snapshot,
    TaskSnapshot,
    event_message,
    read_event,
    ready_at,
)
from millstream.queue.state import QueueState

POINTER = "snapshot"
"""The consumer whose pointer stands just before the first part of the last whole snapshot."""

_PART_BYTES = 512 * 1024


def snapshot_messages(state: QueueState) -> list[Message]:
    """*state* as messages of about half a MiB, to be appended in one call."""
    parts = list(_parts(state.keep()))
    return [event_message(Snapshot(number, len(parts), tasks)) for number, tasks in enumerate(parts, 1)]


def recover(log: Log) -> tuple[QueueState, int]:
    """The state that the messages of *log* add up to, and how many of them follow the last snapshot.

    Raises :class:`DamagedQueueError` where they do not add up.
    """
    state, read, _ = recover_up_to_now(log)
    return state, read


def recover_up_to_now(log: Log) -> tuple[QueueState, int, int]:
    """Like :func:`recover`, and the id of the last message that was seen, for :func:`catch_up`."""
    while True:
        state = QueueState()
        pointer = log.pointer(POINTER)
        last_id = log.last_id
        messages = _messages(log, pointer + 1, last_id)
        try:
            if pointer:
                _restore(state, messages)
            return state, _follow(state, messages), last_id
        except TrimmedError as error:
            if log.pointer(POINTER) == pointer:  # else the owner has taken a snapshot meanwhile: begin at that
                raise DamagedQueueError(
                    f"cannot read the queue in log {log.name!r}, because a part of its last snapshot was trimmed: "
                    f"{error}; restore the log from a backup"
                ) from error
        except DamagedQueueError as error:
            raise _located(log, error) from error


def catch_up(log: Log, state: QueueState, first_id: int, last_id: int) -> None:
    """Apply the messages *first_id* to *last_id* of *log* to *state*, which has seen all before.

    Raises :class:`DamagedQueueError`, and :class:`TrimmedError` where some of them were trimmed from the log.
    """
    try:
        _follow(state, _messages(log, first_id, last_id))
    except DamagedQueueError as error:
        raise _located(log, error) from error


def _located(log: Log, error: DamagedQueueError) -> DamagedQueueError:
    """*error* with the log in which the queue is."""
    return DamagedQueueError(f"the queue in log {log.name!r} is damaged: {error}")


def _messages(log: Log, first_id: int, last_id: int | None) -> Iterator[Message]:
    return (message for batch in log.read(first_id, last_id, gaps="none") for message in batch)


def _follow(state: QueueState, messages: Iterator[Message]) -> int:
    read = 0
    for message in messages:
        read += 1
        if message.key == PUT:
            state.put(message.id, message.body, ready_at(message), message.event_time or 0)
        else:
            state.apply(read_event(message), message.id)
    return read


def _restore(state: QueueState, messages: Iterator[Message]) -> None:
    parts = expected = 1
    while expected <= parts:
        message = next(messages, None)
        event = read_event(message) if message is not None and message.key != PUT else None
        if not isinstance(event, Snapshot) or event.part != expected:
            raise DamagedQueueError(f"part {expected} of its last snapshot is missing; restore the log from a backup")
        state.restore(event.tasks)
        parts, expected = event.parts, expected + 1


def _parts(tasks: Iterable[TaskSnapshot]) -> Iterator[list[TaskSnapshot]]:
    """The tasks in lists of about equal size; at least one list, if an empty one."""
    part: list[TaskSnapshot] = []
    size = 0
    for task in tasks:
        part.append(task)
        size += len(task.body) + 100
        if size >= _PART_BYTES:
            yield part
            part, size = [], 0
    yield part
