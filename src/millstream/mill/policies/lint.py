"""What a policy says that is probably not meant (reference mill §1.3, "not validated", and §8.7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from millstream.mill.policies.policy import DEFAULTS, Pair, Policy, Spots, Warned
from millstream.mill.providers import is_system


def lint_policy(policy: Policy, stores: Collection[str] | None = None, spots: Spots | None = None) -> list[Warned]:
    """Every finding on *policy*; with the ids of the configured *stores*, unknown ones too; with *spots*, where."""
    spots = spots or Spots()
    return [*_pairs(policy, stores, spots), *_cycles(policy, spots), *_spaces(policy, spots)]


def _pairs(policy: Policy, stores: Collection[str] | None, spots: Spots) -> Iterator[Warned]:
    for space, pairs in _places(policy):
        for pair in pairs:
            where, spot = _name(space), spots.pairs.get((space, pair))
            if pair.source == pair.destination:
                yield Warned("same-store", f"{where}: store {pair.source!r} is copied to itself", spot)
            for store in (pair.source, pair.destination):
                if stores is not None and store not in stores:
                    known = ", ".join(sorted(stores)) or "none"
                    yield Warned(
                        "unknown-store", f"{where}: no store {store!r} is configured (there are: {known})", spot
                    )


def _cycles(policy: Policy, spots: Spots) -> Iterator[Warned]:
    for space, pairs in _places(policy):
        cycle = find_cycle(pairs)
        if cycle:
            spot = spots.fields.get(DEFAULTS) if space is None else spots.spaces.get(space)
            yield Warned("cycle", f"{_name(space)}: the stores are copied in a circle: {' → '.join(cycle)}", spot)


def _spaces(policy: Policy, spots: Spots) -> Iterator[Warned]:
    for space, pairs in policy.spaces.items():
        spot = spots.spaces.get(space)
        if space in policy.ignored:
            text = f"space {space!r} is to be ignored, so its pairs do nothing"
            yield Warned("ignored-but-configured", text, spots.ignored.get(space))
        if is_system(space):
            yield Warned("system-space", f"space {space!r} belongs to the system and is never copied", spot)
        if not pairs:
            yield Warned("empty-space", f"space {space!r} has an empty list, so {DEFAULTS} apply to it", spot)
        missed = [str(pair) for pair in policy.defaults if pairs and pair not in pairs]
        if missed:
            text = f"space {space!r} has pairs of its own, so these do not apply: {', '.join(missed)}"
            yield Warned("shadowed-defaults", text, spot)


def find_cycle(pairs: Sequence[Pair]) -> list[str] | None:
    """A circle of two or more stores in *pairs*, first and last the same; None where there is none."""
    following: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.source != pair.destination:
            following.setdefault(pair.source, []).append(pair.destination)
    done: set[str] = set()
    for start in following:
        cycle = _walk(start, following, [], done)
        if cycle:
            return cycle
    return None


def _walk(store: str, following: dict[str, list[str]], path: list[str], done: set[str]) -> list[str] | None:
    if store in path:
        return [*path[path.index(store) :], store]
    if store in done:
        return None
    for following_store in following.get(store, ()):
        cycle = _walk(following_store, following, [*path, store], done)
        if cycle:
            return cycle
    done.add(store)
    return None


def _places(policy: Policy) -> Iterator[tuple[str | None, Sequence[Pair]]]:
    """Each space with its pairs, and None with the defaults."""
    yield from policy.spaces.items()
    yield None, policy.defaults


def _name(space: str | None) -> str:
    return DEFAULTS if space is None else f"space {space!r}"
