"""The begin of the commits of a log: a chain of small objects, of which the newest is valid."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping

import msgspec

from millstream.core.clock import Clock
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.dense_names import find_newest
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.small_objects import decode_object


class ProducerSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last sequence of a producer, and how many commits have stated one."""

    sequence: int
    commits: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Commits begin at the number ``start``: what lies below was trimmed, and its names mean nothing any more.

    ``previous``, ``epoch``, ``last_id``, ``received_at`` and ``producers`` are those of the commit before ``start``.
    """

    version: int = 0
    start: int = 1
    previous: bytes = b""
    epoch: int = 0
    last_id: int = 0
    received_at: int = 0
    producers: Mapping[str, ProducerSequence] = {}
    nonce: str = ""


class Layouts:
    """The layouts of one log, from *first* on, which has no object. Thread-safe."""

    def __init__(self, bucket: Bucket, names: LogNames, clock: Clock, first: Layout) -> None:
        self._bucket, self._names, self._clock = bucket, names, clock
        self._lock = threading.Lock()
        self.newest = first

    def refresh(self) -> Layout:
        """The newest layout. What was read before this call, from a name below its start, may be anything."""
        version, data = find_newest(lambda number: self._bucket.get(self._names.layout(number)), self.newest.version)
        if data is not None:
            self._learn(decode_object(self._names.layout(version), data, Layout), version)
        return self.newest

    def create(self, layout: Layout) -> bool:
        """Make *layout* the one after the newest; False where another was."""
        layout = msgspec.structs.replace(layout, nonce=secrets.token_hex(8))
        made = create_object(self._bucket, self._names.layout(layout.version), msgspec.json.encode(layout), self._clock)
        if made:
            self._learn(layout, layout.version)
        return made

    def _learn(self, layout: Layout, version: int) -> None:
        with self._lock:
            if version > self.newest.version:
                self.newest = layout
