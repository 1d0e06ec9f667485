"""How far a log of batches went when a state was saved: a log that ends earlier now has lost batches since."""

from __future__ import annotations

import logging

import msgspec

from millstream.batching.batch_log_origin import read_origin
from millstream.batching.errors import BatchServiceError
from millstream.log import Log, Writer
from millstream.log.errors import WHY_SHORTER

_log = logging.getLogger(__name__)


class OutputEnd(msgspec.Struct, frozen=True):
    """The last id of a log of batches, and the last sequence of its producer: a message id of the batched log."""

    last_id: int
    sequence: int


NOTHING = OutputEnd(0, 0)
"""The end of a log without batches."""


def end_of(writer: Writer) -> OutputEnd:
    """The end of the log that *writer* writes, which is of the producer ``batching``."""
    return OutputEnd(writer.last_id, writer.sequence)


def read_end(output: Log) -> OutputEnd:
    """The end of *output*, to which another process may be writing."""
    last_id = output.last_id  # first: what is appended in between is counted then
    return OutputEnd(last_id, output.sequence("batching"))


def goes_as_far(end: OutputEnd, known: OutputEnd | None, source: Log, output: Log, state: object) -> bool:
    """Whether *output*, which ends at *end*, still goes as far as it did when *state* was saved, at *known*.

    If not, the lost batches are computed again from the beginning of *source*, without *state*. *known* is None where
    it was not recorded, and :data:`NOTHING` without a state. Raises :class:`BatchServiceError` where the batches cannot
    be computed again, and the errors of :func:`refuse_uncounted`.
    """
    if known is None or end.last_id >= known.last_id:
        refuse_uncounted(end, known, source, output)
        return True
    lost = f"log {output.name!r} ended at message {known.last_id} when {state} was saved, and ends at {end.last_id} now"
    if source.first_id > 1:
        raise BatchServiceError(
            f"{lost}: {WHY_SHORTER}. Log {source.name!r} was trimmed and begins at message {source.first_id}, so that "
            f"the lost batches cannot be computed again: restore log {output.name!r} from a newer backup, or choose a "
            "new output log"
        )
    origin = read_origin(output)
    if origin is not None and origin.log == source.name:
        raise BatchServiceError(
            f"{lost}: {WHY_SHORTER}. A job batched log {source.name!r} up to message {origin.position} from any order, "
            f"so that a service may not compute the lost batches again: restore log {output.name!r} from a newer "
            f"backup, or run `millstream pipeline batch {source.name}` with --hand-over and a new output log"
        )
    refuse_uncounted(end, NOTHING, source, output)
    _log.warning("%s: log %r is read from its beginning, and the lost batches are computed again", lost, source.name)
    return False


def refuse_uncounted(end: OutputEnd, known: OutputEnd | None, source: Log, output: Log) -> None:
    """Raise :class:`BatchServiceError` where *output* has messages after *known* that its sequence does not count.

    All of them would be written again. A copy of a log has such messages, if it has no sequence.
    """
    if known is None or end.last_id <= known.last_id or end.sequence > known.sequence:
        return
    raise BatchServiceError(
        f"log {output.name!r} has messages {known.last_id + 1} to {end.last_id}, but does not record from which "
        f"messages of log {source.name!r} they were made: they were copied from another log, or other programs wrote "
        "them. Copy the whole log again with `millstream log copy`, into a store without it, or choose a new output log"
    )


def refuse_handed_over(end: OutputEnd, source: Log, output: Log, state: object) -> None:
    """Raise :class:`BatchServiceError` where a job over history has batched messages that *output* does not count.

    Without the *state* that the job left, *output* would get their batches, too.
    """
    origin = read_origin(output)
    if origin is None or origin.log != source.name or end.sequence >= origin.position:
        return
    raise BatchServiceError(
        f"a job has batched log {source.name!r} up to message {origin.position} and handed the open batches over to "
        f"log {output.name!r}, but the state {state} is missing or newer than this log: restore the state from a "
        f"backup, or run `millstream pipeline batch {source.name}` with --hand-over and a new output log"
    )
