"""How a copy of a space differs from its source by item: what is only here, and what is not here yet.

A check compares a store with what was recorded of that store. It does not see an item that some other program put among
the copies, nor one that the policy asks for and that was never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import PolicyError
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.manifest import Manifest
from millstream.mill.merge_join import groups
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.report import ItemSet, SourceDifferences
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import StoreError

GROUP = 1000
"""Items that are looked up together; of more than that the source is listed instead."""

_ABSENT = (SourceAnswer.MISSING, SourceAnswer.UNREACHABLE)


class SourceComparison:
    """Compares copies with their sources, those stores from which the *policies* copy a space and to which they do not.

    It goes by what the last check of the copy saw and what is recorded of both. What waits in *outbox* is not decided.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        bit_log: BitLog,
        *,
        policies: Callable[[], Policies],
        outbox: AuditOutbox | None = None,
    ) -> None:
        self._providers, self._manifest, self._bit_log = providers, manifest, bit_log
        self._policies, self._outbox = policies, outbox

    def compare(self, store: str, space: str, *, since: int) -> SourceDifferences:
        """How *space* in *store* differs, when its checks since *since* (microseconds) have ended.

        Items that were recorded at the source after *since* may be on their way and do not count as absent.
        """
        try:
            policies = self._policies()
        except (PolicyError, StoreError) as error:
            return SourceDifferences(note=f"what the policies ask for is not known: {error}")
        sources = sorted(policies.sources(space))
        if store not in policies.copies(space):
            return SourceDifferences()
        unrecorded = list(self._unrecorded(store, space, since))
        try:
            strays = self._strays(store, space, sources, unrecorded)
        except StoreError as error:
            return SourceDifferences(
                note=f"items that only this store has could not be looked up at the source: {error}"
            )
        try:
            lacking = sorted({
                *self._manifest.lacking(sources, space, store, until=since),
                *self._never_recorded(sources, space, store),
            })  # fmt: skip
        except StoreError as error:
            return SourceDifferences(note=f"the source could not be listed, and nothing is recorded of it: {error}")
        here = set(unrecorded)
        absent = self._settled(sources, space, (name for name in lacking if name not in here))
        return SourceDifferences(tuple(sources), strays, ItemSet.of(absent))

    def _never_recorded(self, sources: Sequence[str], space: str, store: str) -> Iterator[str]:
        """Items that sources list, in spaces without any manifest record, and that *store* is not recorded to have."""
        for source in sources:
            if source in self._providers and not self._manifest.count(source, space):
                for names in groups((entry.content_id for entry in self._providers.entries(source, space)), GROUP):
                    copied = self._manifest.get_many(store, space, names)
                    yield from (name for name in names if name not in copied or copied[name].deleted)

    def _unrecorded(self, store: str, space: str, since: int) -> Iterator[str]:
        """Items that the checks saw in *store* and that had no row in the manifest."""
        for result in self._bit_log.results(store, space, since=since):
            if result.manifest is None and result.provider not in _ABSENT:
                yield result.content_id

    def _strays(self, store: str, space: str, sources: Sequence[str], unrecorded: Sequence[str]) -> list[str]:
        found = set(self._manifest.only_in(store, space, sources))
        for names in groups(unrecorded, GROUP):
            known = set[str]().union(*(self._manifest.get_many(source, space, names) for source in sources))
            found |= set(names) - known
        for source in sources:
            if found and source in self._providers:
                found -= self._there(source, space, found)
        return sorted(found)

    def _there(self, source: str, space: str, names: set[str]) -> set[str]:
        """Those of *names* that *source* has."""
        if len(names) > GROUP:
            return {entry.content_id for entry in self._providers.entries(source, space) if entry.content_id in names}
        wanted = sorted(names)
        infos = self._providers.find_many(source, space, wanted)
        return {name for name, info in zip(wanted, infos, strict=True) if info is not None}

    def _settled(self, sources: Sequence[str], space: str, names: Iterable[str]) -> Iterator[str]:
        """Those of *names* of which no change at a source waits in the outbox."""
        for some in groups(names, GROUP):
            pending = set[str]()
            if self._outbox is not None:
                pending = pending.union(*(self._outbox.pending(source, space, some) for source in sources))
            yield from (name for name in some if name not in pending)
