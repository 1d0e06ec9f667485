"""The looping duplication producer (seed document, "Looping Duplication Task Producer").

Every space of every policy has its turn, one of each account after the other. Of a space, all deletes go on the queue
first, however many they are; then a thousand items, and the next space has its turn. A copy and a delete are the same
task, and the state of both ends decides when it is processed, so a task that comes twice or late does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, zip_longest

import msgspec

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import DuplicationPlan, ItemDifference, count_differences, differences
from millstream.mill.duplication.held_items import LossCollector
from millstream.mill.duplication.planning import GROUP, put_deletes, put_items, put_space
from millstream.mill.manifest import Manifest
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.producers.producer_loop import Chunk, LoopFailure
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.producers.spaces import list_spaces
from millstream.mill.producers.state import AnyMorsel
from millstream.queue.protocol import WorkQueue
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import StoreUnavailableError

LOOKED_AT = 10 * GROUP
"""Items that are compared in one turn at most, where only differences become tasks."""


class DuplicationMorsel(AnyMorsel, frozen=True, kw_only=True):
    """A space that is copied between two stores. Its items up to ``marker`` are on the queue, and with
    ``deletes_done`` all its deletes."""

    account: str
    space: str
    source: str
    destination: str
    deletes_done: bool = False
    marker: str = ""

    def __str__(self) -> str:
        return f"{self.space} {self.pair} of {self.account}"

    @property
    def pair(self) -> Pair:
        """The stores."""
        return Pair(self.source, self.destination)


class DuplicationProducer:
    """Puts duplication tasks of *policies* on *queue*. What a policy begins to ask for has its turn in the next loop.

    Without *change_guard* nothing is held. With *only_differences* items that are the same at both ends are left out;
    without it everything is put on the queue, as the document has it. Of *spaces* the store is the source.

    ``held`` are the plans that the change guard has held, and those with items that only the destination has, of which
    no deletion is recorded, where what waits in *outbox* counts as recorded; ``skipped`` are pairs of which a store is
    not configured, and ``dropped`` is what was left of the loop when its pair was removed from the policy.
    """

    def __init__(
        self,
        policies: Callable[[], Policies],
        providers: ConfiguredStores,
        manifest: Manifest,
        queue: WorkQueue,
        *,
        change_guard: ChangeGuard | None = None,
        outbox: AuditOutbox | None = None,
        only_differences: bool = False,
        spaces: SpaceFilter = SpaceFilter(),  # noqa: B008  (frozen)
    ) -> None:
        self._policies, self._providers, self._manifest, self._queue = policies, providers, manifest, queue
        self._outbox = outbox
        self._change_guard, self._only_differences, self._spaces = change_guard, only_differences, spaces
        self.held: list[DuplicationPlan] = []
        self.skipped: list[Pair] = []
        self.dropped: list[DuplicationMorsel] = []
        self.unlisted: Sequence[LoopFailure] = ()

    def morsels(self) -> Sequence[DuplicationMorsel] | None:
        """Every pair of stores of every space that a policy names, one of each account after the other.

        None without a list of accounts: a loop that found nothing to do would be the last for a month.
        """
        if not self._policies().found:
            self.unlisted = [LoopFailure("the policies", self._policies().missing)]
            return None
        policies = self._policies().by_account
        stores = {store for one in policies.values() for pair in one.pairs for store in _stores(pair)}
        listed, self.unlisted = list_spaces(self._providers, self._manifest, stores & set(self._providers))
        each = [list(self._of(account, policy, listed)) for account, policy in policies.items()]
        taken = chain.from_iterable(zip_longest(*each))
        return [morsel for morsel in taken if morsel is not None]

    def next_chunk(self, morsel: DuplicationMorsel, started_at: int) -> Chunk[DuplicationMorsel]:  # noqa: ARG002
        """All deletes, or else the next items; nothing where the policy does not ask for it any more."""
        policies = self._policies()
        if not policies.found:
            raise StoreUnavailableError(policies.missing)
        policy = policies.by_account.get(morsel.account)
        if policy is None or morsel.pair not in policy.lookup(morsel.space):
            self.dropped.append(morsel)
            return Chunk(None)
        if not morsel.deletes_done:
            return self._deletes(morsel)
        names, marker = self._next(morsel)
        put_items(morsel.pair, morsel.space, names, self._queue)
        if marker is not None:
            return Chunk(msgspec.structs.replace(morsel, marker=marker, failures=0, failing_since=None), len(names))
        about_space = put_space(self._providers, morsel.pair, morsel.space, self._queue)
        return Chunk(None, len(names) + about_space)

    def give_up(self, morsel: DuplicationMorsel, started_at: int, error: str) -> None:
        """Nothing is owed: the next loop looks at the space again."""

    def _deletes(self, morsel: DuplicationMorsel) -> Chunk[DuplicationMorsel]:
        pair, space = morsel.pair, morsel.space
        parts, losses = (self._providers, self._manifest, pair, space), LossCollector()
        plan = count_differences(*parts, record=True, outbox=self._outbox, on_loss=losses.add)
        items = partial(losses.items, partial(differences, *parts, same=False, outbox=self._outbox))
        hold = self._change_guard.check(plan, items) if self._change_guard is not None else None
        if hold is not None or plan.held:
            self.held.append(msgspec.structs.replace(plan, hold=hold))
        if hold is not None:
            return Chunk(None)
        count = 0
        if plan.deletes:
            count = put_deletes(self._providers, self._manifest, pair, space, self._queue, outbox=self._outbox)
        return Chunk(msgspec.structs.replace(morsel, deletes_done=True), count, again=True)

    def _next(self, morsel: DuplicationMorsel) -> tuple[list[str], str | None]:
        """The next items to put on the queue, and the marker behind them; None at the end of the space."""
        if not self._only_differences:
            entries = self._providers.entries(morsel.source, morsel.space, after=morsel.marker)
            names = [entry.content_id for entry in islice(entries, GROUP)]
            return names, names[-1] if len(names) == GROUP else None
        names = []
        found = differences(self._providers, self._manifest, morsel.pair, morsel.space, after=morsel.marker)
        for number, one in enumerate(found, start=1):
            if one.kind in (ItemDifference.COPY, ItemDifference.CHANGE):
                names.append(one.name)
            if len(names) == GROUP or number == LOOKED_AT:
                return names, one.name
        return names, None

    def _of(self, account: str, policy: Policy, listed: Mapping[str, frozenset[str]]) -> Iterator[DuplicationMorsel]:
        self.skipped += [pair for pair in policy.pairs if not listed.keys() >= _stores(pair)]
        usable = [pair for pair in policy.pairs if listed.keys() >= _stores(pair)]
        for space in sorted({space for pair in usable for store in _stores(pair) for space in listed[store]}):
            for pair in policy.lookup(space):
                there = pair in usable and any(space in listed[store] for store in _stores(pair))
                if there and self._spaces.takes(account, pair.source, space):
                    yield DuplicationMorsel(
                        account=account, space=space, source=pair.source, destination=pair.destination
                    )


def _stores(pair: Pair) -> set[str]:
    return {pair.source, pair.destination}
