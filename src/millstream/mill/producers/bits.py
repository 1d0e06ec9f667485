"""The looping bit producer (seed document, "Looping Bit Task Producer").

The spaces of all stores have their turn one after the other, a thousand items at a time. When all checks of a space
have ended, a report on it is requested, whatever the state of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from millstream.core.clock import Clock
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores, is_system
from millstream.mill.errors import PolicyError
from millstream.mill.integrity.sweep import is_lately_verified, listed_or_known
from millstream.mill.manifest import Manifest
from millstream.mill.policies.repository import Policies
from millstream.mill.producers.producer_loop import Chunk, LoopFailure
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.producers.spaces import list_spaces
from millstream.mill.producers.state import AnyMorsel
from millstream.mill.tasks import BitCheck, BitReport, encode_task
from millstream.queue.protocol import WorkQueue
from millstream.stores.protocol import StoreError

GROUP = 1000
"""Items that are put on the queue in one turn."""

LOOKED_AT = 10 * GROUP
"""Items that are examined in one turn at most, where those that were checked lately are left out."""

_GONE = (
    "the manifest lists items in this store, which is not configured: they are not checked; if it was removed for "
    "good, `millstream mill retire` retires its records"
)


class BitMorsel(AnyMorsel, frozen=True, kw_only=True):
    """A space to check. ``listed`` items up to ``marker`` are on the queue, since ``since`` (microseconds, UTC).

    Those found good at ``good_since`` or later are left out. ``open_ranges`` are the first and last ids of the tasks
    that may not have ended; ``queued``: all items are on it.
    """

    store: str
    space: str
    marker: str = ""
    since: int | None = None
    listed: int = 0
    queued: bool = False
    open_ranges: tuple[tuple[int, int], ...] = ()
    good_since: int | None = None

    def __str__(self) -> str:
        return f"{self.store}/{self.space}"


class BitProducer:
    """Puts a check of every item of every space that *spaces* takes on *queue*, and reports on *reports*.

    *account* is the name by which patterns of *spaces* know this installation. What was read and found good in the last
    *skip* microseconds before its space has its turn is not checked again; with 0 everything is. A space that
    *policies* ask for has its turn where it is not there, too.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        queue: WorkQueue,
        reports: WorkQueue,
        clock: Clock,
        *,
        spaces: SpaceFilter = SpaceFilter(),  # noqa: B008  (frozen)
        account: str = "local",
        skip: int = 0,
        policies: Callable[[], Policies] | None = None,
        audit_lookup: AuditLookup | None = None,
    ) -> None:
        self._providers, self._manifest, self._clock = providers, manifest, clock
        self._queue, self._reports = queue, reports
        self._spaces, self._account, self._skip = spaces, account, skip
        self._policies, self._audit_lookup = policies, audit_lookup
        self.unlisted: Sequence[LoopFailure] = ()

    def morsels(self) -> Sequence[BitMorsel]:
        """Every space that a store lists or the manifest knows, but for those of the system."""
        listed, failures = list_spaces(self._providers, self._manifest, self._providers)
        known = {(store, space) for store, spaces in listed.items() for space in spaces} | set(self._manifest.spaces())
        gone = sorted({store for store, _ in known if store not in self._providers})
        known = {(store, space) for store, space in known if store in self._providers}
        self.unlisted = [*failures, *(LoopFailure(f"the spaces of store {store!r}", _GONE) for store in gone)]
        taken = {place for place in known if self._takes(*place)}
        taken |= {place for place in self._asked(taken) if self._takes(*place)}
        return [BitMorsel(store=store, space=space) for store, space in sorted(taken)]

    def _takes(self, store: str, space: str) -> bool:
        return not is_system(space) and self._spaces.takes(self._account, store, space)

    def _asked(self, known: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        if self._policies is None:
            return set()
        try:
            return {place for place in self._policies().copies_of(known) if place[0] in self._providers}
        except (PolicyError, StoreError):
            return set()  # each report says that it is not known what the policies ask for

    def next_chunk(self, morsel: BitMorsel, started_at: int) -> Chunk[BitMorsel]:  # noqa: ARG002
        """The next checks, or the report when the last has ended."""
        return self._report(morsel) if morsel.queued else self._checks(morsel)

    def give_up(self, morsel: BitMorsel, started_at: int, error: str) -> None:
        """The space gets a report that cannot say SUCCESS."""
        since = morsel.since if morsel.since is not None else started_at
        self._put_report(
            BitReport(morsel.store, morsel.space, since, morsel.listed, f"the listing stopped before its end: {error}")
        )

    def _checks(self, morsel: BitMorsel) -> Chunk[BitMorsel]:
        if morsel.since is None:
            now = self._clock.now()
            good = now - self._skip if self._skip else None
            morsel = msgspec.structs.replace(morsel, since=now, good_since=good)
        names, marker, looked_at = self._next(morsel)
        ids = self._queue.put([encode_task(BitCheck(morsel.store, morsel.space, name)) for name in names])
        left = msgspec.structs.replace(
            morsel,
            marker=morsel.marker if marker is None else marker,
            listed=morsel.listed + looked_at,
            queued=marker is None,
            open_ranges=(*morsel.open_ranges, (ids[0], ids[-1])) if ids else morsel.open_ranges,
            failures=0,
            failing_since=None,
        )
        return Chunk(left, len(names))

    def _next(self, morsel: BitMorsel) -> tuple[list[str], str | None, int]:
        """The next items to check, the marker behind them (None at the end of the space), and how many were seen."""
        names: list[str] = []
        looked_at, now = 0, self._clock.now()
        place = (morsel.store, morsel.space)
        found = listed_or_known(self._providers, self._manifest, *place, self._audit_lookup, after=morsel.marker)
        for name, entry, row in found:
            looked_at += 1
            if morsel.good_since is None or not is_lately_verified(entry, row, morsel.good_since, now):
                names.append(name)
            if len(names) == GROUP or looked_at == LOOKED_AT:
                return names, name, looked_at
        return names, None, looked_at

    def _report(self, morsel: BitMorsel) -> Chunk[BitMorsel]:
        still = tuple(ends for ends in morsel.open_ranges if self._queue.unsettled(*ends))
        if still:
            return Chunk(msgspec.structs.replace(morsel, open_ranges=still), moved=False)
        good = morsel.good_since
        self._put_report(BitReport(morsel.store, morsel.space, morsel.since or 0, morsel.listed, good_since=good))
        return Chunk(None, 1)

    def _put_report(self, report: BitReport) -> None:
        self._reports.put([encode_task(report)])
