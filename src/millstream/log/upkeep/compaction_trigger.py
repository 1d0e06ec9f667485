"""A writer that compacts its log in a bucket while it writes, whenever there are enough commits."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

from millstream.core.errors import MillstreamError

_log = logging.getLogger(__name__)


class CompactionTrigger:
    """Calls *compact* in a separate thread as soon as :meth:`look` finds *most* commits. Thread-safe.

    *count* tells how many there are, and makes no request. Where a run failed, or was not enough, the next one waits
    for a fifth of *most* more.
    """

    def __init__(
        self, log: str, count: Callable[[], int], compact: Callable[[Callable[[], bool]], object], most: int
    ) -> None:
        self._name, self._count, self._compact, self._most = log, count, compact, most
        self._next = most
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def look(self, last_id: int = 0) -> None:  # noqa: ARG002 - a listener of commits is told where the log ends
        """Start a run if it is due and none is under way."""
        if self._count() < self._next:
            return
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="millstream-log-compaction", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Start no more runs, and wait until one that is under way has stored the object it works at."""
        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        asked = itertools.count()
        try:
            self._compact(lambda: next(asked) > 0 and self._closed)  # the first object is written in any case
        except MillstreamError as error:
            _log.warning("log %r was not compacted: %s", self._name, error)
        except Exception:
            _log.exception("log %r was not compacted", self._name)
        self._next = max(self._most, self._count() + self._most // 5)
