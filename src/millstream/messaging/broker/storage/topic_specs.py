"""The topics of a broker that runs in another process, as its journal has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from millstream.log import Log, LogNotFoundError, LogStore, TrimmedError
from millstream.messaging.broker.storage.journal import JOURNAL, SNAPSHOT
from millstream.messaging.broker.storage.journal_events import Event, TopicDropped, TopicMade, read_event_body
from millstream.messaging.broker.storage.topic import TopicSpec

_KEYS = pa.array([str(kind.__struct_config__.tag) for kind in (TopicMade, TopicDropped)])


class TopicSpecs:
    """Follows the journal in *store*. One thread at a time may use it."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._next_id = 0
        self._specs: Mapping[str, TopicSpec] = {}

    def read(self) -> Mapping[str, TopicSpec]:
        """All topics by name, as they are now; what is returned stays as it is."""
        try:
            log = self._store.log(JOURNAL, create=False)
        except LogNotFoundError:  # no broker has run yet
            return {}
        while True:
            begin = max(log.pointer(SNAPSHOT) + 1, log.first_id)
            with contextlib.suppress(TrimmedError):  # by a snapshot that was taken meanwhile
                self._read_on(log, begin)
                return self._specs

    def _read_on(self, log: Log, begin: int) -> None:
        """Read what is new; all from *begin* on, where the last snapshot of the journal is, if that is newer."""
        is_behind = begin > self._next_id
        first, last = max(begin, self._next_id), log.last_id
        specs = {} if is_behind else dict(self._specs)
        for event in _topic_events(log, first, last):
            if isinstance(event, TopicMade):
                specs[event.topic] = TopicSpec(event.topic, event.type, event.queues)
            elif isinstance(event, TopicDropped):
                specs.pop(event.topic, None)
        self._specs, self._next_id = specs, last + 1


def _topic_events(log: Log, first_id: int, last_id: int) -> Iterator[Event]:
    if first_id > last_id:
        return
    for batch in log.read(first_id, last_id, ["key", "body"], gaps="none"):
        rows = batch.arrow.filter(pc.is_in(batch.arrow.column("key"), _KEYS))
        yield from map(read_event_body, rows.column("body").to_pylist())
