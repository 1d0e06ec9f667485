"""Planning duplication: which items of a space differ between source and destination, as tasks on a queue."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import (
    DuplicationPlan,
    ItemDifference,
    count_differences,
    differences,
)
from millstream.mill.duplication.direct import DirectDuplicator, PlannedCopies
from millstream.mill.duplication.held_items import LossCollector
from millstream.mill.manifest import Manifest
from millstream.mill.merge_join import groups
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies
from millstream.mill.tasks import Duplicate, encode_task
from millstream.queue.protocol import WorkQueue
from millstream.stores.audit import AuditOutbox
from millstream.stores.protocol import StoreError

GROUP = 1000
"""Tasks put on the queue together (seed document: "it will only add 1000 items at a time")."""


def plan_space_duplication(
    providers: ConfiguredStores,
    manifest: Manifest,
    pair: Pair,
    space: str,
    queue: WorkQueue | None,
    *,
    everything: bool = False,
    record: bool = False,
    change_guard: ChangeGuard | None = None,
    outbox: AuditOutbox | None = None,
    skip: Container[str] = (),
    direct: DirectDuplicator | None = None,
) -> DuplicationPlan:
    """Put a :class:`Duplicate` task on *queue* for every item of *space* that differs between the stores of *pair*.

    All deletes come before all copies; the last task is for the space itself, if one end lacks it. With *everything*,
    items that are the same are put on the queue all the same, as the document's looping producer does. Nothing is put
    on it where *change_guard* holds the plan. Without a queue this is a dry run. With *record* the manifest is brought
    up to date with the source first. A deletion that waits in *outbox* counts as recorded. Items of *skip* are neither
    counted nor copied. With *direct* that copies what it can, before this returns, and only the rest is put on the
    queue; not where there is anything to delete, which comes first.
    """
    planned, losses = PlannedCopies(providers.clock), LossCollector()
    plan = count_differences(
        providers, manifest, pair, space, everything=everything, record=record, outbox=outbox, skip=skip,
        on_copy=None if queue is None else planned.add, on_new=None if queue is None else planned.add_new,
        on_info=None if direct is None else planned.add_info, on_loss=losses.add,
    )  # fmt: skip
    if queue is None:
        reason = change_guard.preview(plan) if change_guard is not None else None
        return msgspec.structs.replace(plan, hold_reason=reason)
    compared = partial(differences, providers, manifest, pair, space, same=False, outbox=outbox)
    items = partial(losses.items, compared)
    hold = change_guard.check(plan, items, keep_vanished=record) if change_guard is not None else None
    if hold is not None:
        return msgspec.structs.replace(plan, hold=hold)
    if plan.deletes:
        put_deletes(providers, manifest, pair, space, queue, outbox=outbox)
    if plan.copies or plan.changes:
        kinds = {ItemDifference.COPY, ItemDifference.CHANGE} | ({ItemDifference.SAME} if everything else set())
        names: Iterable[str] | None = planned.names
        if names is None or everything:
            found = differences(providers, manifest, pair, space, same=everything)
            names = (one.name for one in found if one.kind in kinds and one.name not in skip)
        if direct is None or plan.deletes:
            left: Iterable[Sequence[str]] = groups(names, GROUP)
        else:
            left = direct.copy(pair, space, names, planned)
        for group in left:
            put_items(pair, space, group, queue)
    put_space(providers, pair, space, queue)
    return plan


def put_deletes(
    providers: ConfiguredStores,
    manifest: Manifest,
    pair: Pair,
    space: str,
    queue: WorkQueue,
    *,
    outbox: AuditOutbox | None = None,
) -> int:
    """A task for each item that only the destination has, and whose deletion is recorded; how many they were."""
    found = differences(providers, manifest, pair, space, same=False, outbox=outbox)
    count = 0
    for group in groups((one.name for one in found if one.kind == ItemDifference.DELETE), GROUP):
        put_items(pair, space, group, queue)
        count += len(group)
    return count


def put_items(pair: Pair, space: str, names: Sequence[str], queue: WorkQueue) -> None:
    """A task for each of *names*, in one go."""
    if names:
        queue.put([encode_task(Duplicate(pair.source, pair.destination, space, name)) for name in names])


def put_space(providers: ConfiguredStores, pair: Pair, space: str, queue: WorkQueue) -> bool:
    """Add a task for the space itself if one end lacks it; whether there was one."""
    lacking = not all(_has_space(providers, store, space) for store in (pair.source, pair.destination))
    if lacking:
        put_items(pair, space, [""], queue)
    return lacking


def duplication_rounds(
    policies: Policies, providers: ConfiguredStores, space: str | None = None, *, unlisted: dict[str, str] | None = None
) -> Sequence[Sequence[tuple[Pair, str]]]:
    """The pairs to copy by the policies: pairs of stores with a space of at least one of them, in rounds.

    A pair whose source is itself a copy (A → B, B → C) comes in a later round than the pair that fills it. With
    *space*, only that one. Stores that cannot be listed are added to *unlisted*, with the reason, and their pairs left
    out; without it they are an error. Raises :class:`UnknownStoreError` for a pair whose store is not configured.
    """
    away = {} if unlisted is None else unlisted
    rounds: dict[int, list[tuple[Pair, str]]] = {}
    for policy in policies.by_account.values():
        listed = _spaces(policy, providers, None if unlisted is None else away)
        for name in sorted(listed if space is None else {space}):
            pairs = tuple(policy.lookup(name))
            for pair in pairs:
                if pair.source not in away and pair.destination not in away:
                    rounds.setdefault(_depths(pairs)[pair.source], []).append((pair, name))
    return [list(dict.fromkeys(rounds[depth])) for depth in sorted(rounds)]


def _spaces(policy: Policy, providers: ConfiguredStores, unlisted: dict[str, str] | None) -> set[str]:
    found = set[str]()
    for store in sorted({store for pair in policy.pairs for store in (pair.source, pair.destination)}):
        try:
            found |= set(providers.spaces(store))
        except StoreError as error:
            if unlisted is None:
                raise
            unlisted[store] = str(error)
    return found


@lru_cache(256)
def _depths(pairs: tuple[Pair, ...]) -> Mapping[str, int]:
    """How many copies lie at most between each source and its original; 0 for originals.

    In a circle, which has none, as many as there are stores.
    """
    depths = {store: 0 for pair in pairs for store in (pair.source, pair.destination)}
    for _ in range(len(depths)):
        deeper = dict(depths)
        for pair in pairs:
            if pair.source != pair.destination:
                deeper[pair.destination] = max(deeper[pair.destination], 1 + depths[pair.source])
        if deeper == depths:
            break
        depths = deeper
    return depths


def _has_space(providers: ConfiguredStores, store: str, space: str) -> bool:
    return providers.call(lambda: providers[store].has_space(space))
