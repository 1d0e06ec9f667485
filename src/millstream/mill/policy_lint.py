"""What a policy says that is probably not meant (reference mill §1.3, "not validated", and §8.7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from millstream.mill.policy import DEFAULTS, Pair, Policy, Warned
from millstream.mill.providers import is_system


def lint_policy(policy: Policy, stores: Collection[str] | None = None) -> list[Warned]:
    """Every finding on *policy*; with the ids of the configured *stores*, unknown ones too."""
    return [*_pairs(policy, stores), *_cycles(policy), *_spaces(policy)]


def _pairs(policy: Policy, stores: Collection[str] | None) -> Iterator[Warned]:
    for where, pairs in _places(policy):
        for pair in pairs:
            if pair.source == pair.destination:
                yield Warned("same-store", f"{where}: store {pair.source!r} is copied to itself")
            for store in (pair.source, pair.destination):
                if stores is not None and store not in stores:
                    known = ", ".join(sorted(stores)) or "none"
                    yield Warned("unknown-store", f"{where}: no store {store!r} is configured (there are: {known})")


def _cycles(policy: Policy) -> Iterator[Warned]:
    for where, pairs in _places(policy):
        cycle = find_cycle(pairs)
        if cycle:
            yield Warned("cycle", f"{where}: the stores are copied in a circle: {' → '.join(cycle)}")


def _spaces(policy: Policy) -> Iterator[Warned]:
    for space, pairs in policy.spaces.items():
        if space in policy.ignored:
            yield Warned("ignored-but-configured", f"space {space!r} is to be ignored, so its pairs do nothing")
        if is_system(space):
            yield Warned("system-space", f"space {space!r} belongs to the system and is never copied")
        if not pairs:
            yield Warned("empty-space", f"space {space!r} has an empty list, so {DEFAULTS} apply to it")
        missed = [str(pair) for pair in policy.defaults if pairs and pair not in pairs]
        if missed:
            yield Warned(
                "shadowed-defaults", f"space {space!r} has pairs of its own, so these do not apply: {', '.join(missed)}"
            )


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


def _places(policy: Policy) -> Iterator[tuple[str, Sequence[Pair]]]:
    for space, pairs in policy.spaces.items():
        yield f"space {space!r}", pairs
    yield DEFAULTS, policy.defaults
