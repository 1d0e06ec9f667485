"""What every log of a store needs from time to time: older blocks moved to the tier, then what has to go trimmed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.log.log import Log
from millstream.log.retainer import Retainer
from millstream.log.retention import Plan
from millstream.log.spec import LogSpec
from millstream.log.store import LogStore
from millstream.log.tiering import Moved

_log = logging.getLogger(__name__)


class Upkept(msgspec.Struct, frozen=True):
    """What was done for one log, by the policies that are kept with it; ``error`` says what was not, and why."""

    log: str
    moved: Moved | None = None
    trimmed: Plan | None = None
    error: str | None = None


def keep_up(store: LogStore, clock: Clock) -> Iterator[Upkept]:
    """Move and trim the logs of *store* that have a policy for it, each once; a log that fails keeps no other back.

    Safe to run from anywhere, as often as wished, and to be killed.
    """
    for name in store.logs():
        log = store.log(LogSpec(name), create=False)
        if log.tiering is not None or log.retention is not None:
            yield _keep_up(log, clock)


def _keep_up(log: Log, clock: Clock) -> Upkept:
    moved = None
    try:
        moved = log.move_blocks() if log.tiering is not None else None
        trimmed = Retainer(log, clock).run_once() if log.retention is not None else None
    except MillstreamError as error:
        _log.warning("%s is not kept up: %s", log.name, error)
        return Upkept(log.name, moved, error=str(error))
    return Upkept(log.name, moved, trimmed)
