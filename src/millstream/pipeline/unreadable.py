"""Unreadable parts of a log: a reader that may continue past damage records what it skipped, and why."""

from __future__ import annotations

import io
from collections.abc import Iterator

import msgspec

from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.log.gap import Gap
from millstream.mill.configured_stores import QUARANTINE
from millstream.stores import Store, all_entries, open_provider


class UnreadableRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages *first_id* to *last_id* of *log*, which a reader left out.

    ``reason`` is ``corrupt`` (their block is damaged) or ``missing`` (the store has no block of theirs), ``error`` says
    more and what to do.
    """

    log: str
    first_id: int
    last_id: int
    reason: str
    error: str


class Quarantine:
    """The notes on *log* at the storage provider of *url*, an object of JSON for each run of ids.

    They lie in the system's space ``x-quarantine``, named by log and ids: a task that runs twice notes the same twice.
    """

    def __init__(self, url: str, log: str) -> None:
        self._url, self._log = url, log

    def prepare(self) -> None:
        """Make the place where absent, before there is anything to note. Raises the errors of the store."""
        self._store(create=True).create_space(QUARANTINE)

    def record(self, gap: Gap) -> UnreadableRange:
        """Note *gap*. Raises its error where it was trimmed, which is not damage, and the errors of the store."""
        if gap.reason == "trimmed":
            raise gap.error
        found = UnreadableRange(self._log, gap.first_id, gap.last_id, gap.reason, str(gap.error))
        data = canonical_json(msgspec.to_builtins(found))
        self._store().put(QUARANTINE, f"{self._prefix}{gap.first_id:020}-{gap.last_id:020}.json", io.BytesIO(data))
        return found

    def notes(self) -> Iterator[UnreadableRange]:
        """All that was noted, by first id; runs that were noted by several readers may overlap."""
        store = self._store()
        if store.has_space(QUARANTINE):
            for entry in all_entries(store, QUARANTINE, prefix=self._prefix):
                with store.open(QUARANTINE, entry.content_id) as file:
                    yield msgspec.json.decode(file.read(), type=prepared(UnreadableRange))

    @property
    def _prefix(self) -> str:
        return f"logs/{self._log}/"

    def _store(self, *, create: bool = False) -> Store:
        return open_provider(self._url, create=create)
