"""The state of a query over a log in Spark's checkpoint: how far it has planned, and how far it is done."""

from __future__ import annotations

import glob
import json
import secrets
import shutil
from pathlib import Path
from typing import NamedTuple

from millstream.pipeline.errors import PipelineError


class QueryProgress(NamedTuple):
    """The last ids of the last trigger that is done and of the last one that was begun (0: none).

    ``received_at`` is the receive time of the message ``done``; None where it is unknown, as in earlier releases.
    """

    done: int
    begun: int
    received_at: int | None = None


def read_progress(checkpoint: Path) -> QueryProgress:
    """How far the query of *checkpoint* has come. Raises :class:`PipelineError` where that cannot be read."""
    begun, done = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    (done_id, received_at), (begun_id, _) = _end_of(checkpoint, done), _end_of(checkpoint, begun)
    return QueryProgress(done_id, begun_id, received_at)


def last_done(checkpoint: Path) -> int | None:
    """The number of the last trigger that is done; None before the first."""
    return _newest(checkpoint / "commits")


def discard_checkpoint(checkpoint: Path) -> None:
    """Remove the folder *checkpoint* in one step, if it exists: no part of it is ever taken for a checkpoint.

    Raises :class:`PipelineError`.
    """
    dead = f".{checkpoint.name}.discarded."
    if checkpoint.exists():
        try:
            checkpoint.rename(checkpoint.with_name(f"{dead}{secrets.token_hex(4)}"))
        except OSError as error:
            raise PipelineError(
                f"cannot remove the checkpoint {checkpoint}, which is out of date ({error.strerror}): delete this "
                "folder, then start the job again"
            ) from error
    for path in checkpoint.parent.glob(f"{glob.escape(dead)}*"):  # also those of processes that were killed
        shutil.rmtree(path, ignore_errors=True)


def _newest(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=None)


def _end_of(checkpoint: Path, trigger: int | None) -> tuple[int, int | None]:
    """The end of *trigger*: the last line of its file is the offset of the query's only source."""
    if trigger is None:
        return 0, None
    path = checkpoint / "offsets" / str(trigger)
    try:
        offset = json.loads(path.read_text("utf-8").splitlines()[-1])
        return int(offset["id"]), offset.get("received_at")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        why, remedy = 'its last line is not an object with an integer "id"', f"delete the folder {checkpoint}"
        remedy += ": the stream then continues from its state file"
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            if not isinstance(error, FileNotFoundError):  # the progress itself may be undamaged
                remedy = "check the permissions of this file and the disk, then start the stream again"
        raise PipelineError(f"cannot read the progress of the stream from {path} ({why}): {remedy}") from error
