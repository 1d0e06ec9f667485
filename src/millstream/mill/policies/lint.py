"""Probable mistakes in policies (reference mill §1.3, "not validated", and §8.7).

Each is examined by itself, and all of them together, since the accounts share the stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

from millstream.mill.configured_stores import is_system
from millstream.mill.policies.policy import DEFAULTS, Pair, Policy, PolicyPositions, PolicyWarning
from millstream.mill.policies.repository import Policies


class _Step(NamedTuple):
    """A pair that applies to some space: whose policy it is of, and in which list of it (None: the defaults)."""

    account: str
    listed: str | None
    pair: Pair


def lint_policies(policies: Policies, stores: Collection[str] | None = None) -> Mapping[str, Sequence[PolicyWarning]]:
    """Every finding, by account: what the texts gave cause for, each policy by itself, and what they do together.

    With the ids of the configured *stores*, unknown ones too.
    """
    positions = {account: policies.positions.get(account, PolicyPositions()) for account in policies.by_account}
    together = list(_together(policies.by_account, positions))
    return {
        account: [
            *policies.warnings.get(account, ()),
            *lint_policy(policy, stores, positions[account]),
            *(warned for whose, warned in together if whose == account),
        ]
        for account, policy in policies.by_account.items()
    }


def lint_policy(
    policy: Policy, stores: Collection[str] | None = None, positions: PolicyPositions | None = None
) -> list[PolicyWarning]:
    """Every finding on *policy* by itself; with *positions* they say where it is."""
    positions = positions or PolicyPositions()
    return [*_pairs(policy, stores, positions), *_cycles(policy, positions), *_spaces(policy, positions)]


def _pairs(policy: Policy, stores: Collection[str] | None, positions: PolicyPositions) -> Iterator[PolicyWarning]:
    for space, pairs in _places(policy):
        for pair in pairs:
            where, position = _name(space), positions.pairs.get((space, pair))
            if pair.source == pair.destination:
                yield PolicyWarning("same-store", f"{where}: store {pair.source!r} is copied to itself", position)
            for store in (pair.source, pair.destination):
                if stores is not None and store not in stores:
                    known = ", ".join(sorted(stores)) or "none"
                    yield PolicyWarning(
                        "unknown-store", f"{where}: no store {store!r} is configured (there are: {known})", position
                    )


def _cycles(policy: Policy, positions: PolicyPositions) -> Iterator[PolicyWarning]:
    for space, pairs in _places(policy):
        cycle = find_cycle(pairs)
        if cycle:
            position = positions.fields.get(DEFAULTS) if space is None else positions.spaces.get(space)
            yield PolicyWarning(
                "cycle", f"{_name(space)}: the stores are copied in a circle: {' → '.join(cycle)}", position
            )


def _spaces(policy: Policy, positions: PolicyPositions) -> Iterator[PolicyWarning]:
    for space, pairs in policy.spaces.items():
        position = positions.spaces.get(space)
        if space in policy.ignored:
            text = f"space {space!r} is ignored, so its pairs have no effect"
            yield PolicyWarning("ignored-but-configured", text, positions.ignored.get(space))
        if is_system(space):
            yield PolicyWarning("system-space", f"space {space!r} belongs to the system and is never copied", position)
        if not pairs:
            yield PolicyWarning(
                "empty-space", f"space {space!r} has an empty list, so {DEFAULTS} apply to it", position
            )
        missed = [str(pair) for pair in policy.defaults if pairs and pair not in pairs]
        if missed:
            text = f"space {space!r} has pairs of its own, so these do not apply: {', '.join(missed)}"
            yield PolicyWarning("shadowed-defaults", text, position)


def _together(
    policies: Mapping[str, Policy], positions: Mapping[str, PolicyPositions]
) -> Iterator[tuple[str, PolicyWarning]]:
    """Findings about the pairs of all accounts together, by space; each for every account involved."""
    for space in (None, *dict.fromkeys(space for policy in policies.values() for space in policy.spaces)):
        steps = list(_steps(policies, space))
        if space is not None and all(step.listed is None for step in steps):
            continue  # as other spaces, of which it is said already
        for code, text, meant in _found_together(steps):
            for account in dict.fromkeys(step.account for step in meant):
                first = next(step for step in meant if step.account == account)
                position = positions[account].pairs.get((first.listed, first.pair))
                yield account, PolicyWarning(code, f"{_name(space)}: {text}", position)


def _found_together(steps: Sequence[_Step]) -> Iterator[tuple[str, str, Sequence[_Step]]]:
    """The code, the words and the steps of each finding."""
    cycle = find_cycle([step.pair for step in steps])
    if cycle:
        meant = [step for step in steps if (step.pair.source, step.pair.destination) in set(pairwise(cycle))]
        if len({step.account for step in meant}) > 1:
            owners = ", ".join(f"{step.pair} of {step.account}" for step in meant)
            yield "cycle", f"the policies of several accounts copy the stores in a circle: {owners}", meant
        return
    originals_of = _originals(steps)
    for destination in dict.fromkeys(step.pair.destination for step in steps):
        into = [step for step in steps if step.pair.destination == destination]
        originals = sorted(originals_of[destination])
        if len(originals) > 1:
            text = (
                f"store {destination!r} gets the items of {' and '.join(map(repr, originals))}; "
                "of those of one name, each takes the place of the other"
            )
            yield "several-originals", text, into


def _originals(steps: Sequence[_Step]) -> Mapping[str, frozenset[str]]:
    """The stores that nothing is copied to, and from which each destination gets its items; there is no circle."""
    sources: dict[str, set[str]] = {}
    for step in steps:
        sources.setdefault(step.pair.destination, set()).add(step.pair.source)
    found: dict[str, frozenset[str]] = {}
    for store in TopologicalSorter(sources).static_order():
        if store in sources:
            found[store] = frozenset[str]().union(*(found.get(source, {source}) for source in sources[store]))
    return found


def _steps(policies: Mapping[str, Policy], space: str | None) -> Iterator[_Step]:
    """The pairs that apply to *space*; with None those of a space that no policy names."""
    for account, policy in policies.items():
        own = space is not None and bool(policy.spaces.get(space))
        for pair in policy.defaults if space is None else policy.lookup(space):
            if pair.source != pair.destination:
                yield _Step(account, space if own else None, pair)


def find_cycle(pairs: Sequence[Pair]) -> list[str] | None:
    """A circle of two or more stores in *pairs*, first and last the same; None where there is none."""
    following: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.source != pair.destination:
            following.setdefault(pair.source, []).append(pair.destination)
    done: set[str] = set()
    for start in following:
        path: dict[str, None] = {}  # in order
        ahead = [iter([start])]  # of the start, and of each store of the path
        while ahead:
            store = next(ahead[-1], None)
            if store is None:
                ahead.pop()
                if path:
                    done.add(path.popitem()[0])
            elif store in path:
                stores = list(path)
                return [*stores[stores.index(store) :], store]
            elif store not in done:
                path[store] = None
                ahead.append(iter(following.get(store, ())))
    return None


def _places(policy: Policy) -> Iterator[tuple[str | None, Sequence[Pair]]]:
    """Each space with its pairs, and None with the defaults."""
    yield from policy.spaces.items()
    yield None, policy.defaults


def _name(space: str | None) -> str:
    return DEFAULTS if space is None else f"space {space!r}"
