"""The document in which a host keeps how far it has come, so that it, or another host, continues there.

The service in this process, the stream job and the history job write the same one (``docs/formats/batch-log.md``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from millstream.batching.errors import SnapshotError
from millstream.batching.output_end import NOTHING, OutputEnd
from millstream.batching.snapshot import decode_snapshot
from millstream.core.decoding import prepared
from millstream.core.documents import Document


class ServiceState(msgspec.Struct, frozen=True):
    """*snapshot* is a batcher's after the messages of *log* up to *position*, whose batches go to *output*.

    *end* is the end of *output* when this was saved, None in a state of an earlier release.
    """

    log: str
    output: str
    position: int
    snapshot: bytes
    end: OutputEnd | None = None


def write_state(document: Document, state: ServiceState) -> None:
    """Put *state* into *document*, durably."""
    document.write(msgspec.msgpack.encode(state))


def read_state(document: Document, log: str, output: str) -> ServiceState | None:
    """The state in *document*, None where there is none. Raises :class:`SnapshotError` where it is of other logs."""
    data = document.read()
    if data is None:
        return None
    try:
        state = decode_state(data)
    except msgspec.DecodeError as error:
        raise SnapshotError(
            f"{document} is not a valid state of a batch service ({error}): delete this state to replay the log"
        ) from error
    if (state.log, state.output) != (log, output):
        raise SnapshotError(
            f"{document} is the state of batching {state.log!r} into {state.output!r}, not {log!r} into {output!r}: "
            f"batch {state.log!r} into {state.output!r}, or choose a new output log"
        )
    return state


def decode_state(data: bytes) -> ServiceState:
    """The state that *data* encodes. Raises :class:`msgspec.DecodeError` where it is none."""
    return msgspec.msgpack.decode(data, type=prepared(ServiceState))


@contextlib.contextmanager
def naming_state(document: Document) -> Iterator[None]:
    """In the block, a :class:`SnapshotError` also names *document*, whose snapshot is read there."""
    try:
        yield
    except SnapshotError as error:
        raise SnapshotError(f"cannot continue from the state {document}: {error}") from error


def is_blank(state: ServiceState | None, end: OutputEnd) -> bool:
    """Whether nothing was batched yet, so that the rules in *state* do not matter; *end* is that of the output."""
    return end == NOTHING and (state is None or decode_snapshot(state.snapshot)[1].clock is None)


def known_end(state: ServiceState | None) -> OutputEnd | None:
    """How far the output went when *state* was saved; None where that was not recorded."""
    return NOTHING if state is None else state.end


def batched_pair(document: Document) -> tuple[str, str] | None:
    """The log and the output of the state in *document*; None where it is not there or not a valid state."""
    try:
        names = msgspec.msgpack.decode(document.read() or b"", type=prepared(_StateNames))
    except (OSError, msgspec.DecodeError):
        return None
    return names.log, names.output


class _StateNames(msgspec.Struct, frozen=True):
    """Of a :class:`ServiceState` only the names."""

    log: str
    output: str
