"""Callbacks that hear of each commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Callbacks:
    """Functions that are called with the last durable id. Thread-safe."""

    def __init__(self, log: str) -> None:
        self._name = log
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[int], object], ...] = ()

    def add(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call *callback* from now on; the function that is returned ends that."""
        entry = _Callback(callback)
        with self._lock:
            self._callbacks = (*self._callbacks, entry)

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not entry)

        return remove

    def call(self, last_id: int) -> None:
        """Call them all, in the order in which they were added; what one raises is logged."""
        for callback in self._callbacks:
            try:
                callback(last_id)
            except Exception:
                _log.exception("a callback of the log %s failed", self._name)


class _Callback:
    """One callback, which may have been added more than once."""

    def __init__(self, callback: Callable[[int], object]) -> None:
        self._callback = callback

    def __call__(self, last_id: int) -> None:
        self._callback(last_id)
