"""Which member is to own which role: a pure function, which each member computes for itself of the same tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BROKER_ROLE = "broker"
"""The role of the broker for RocketMQ clients. Its clients wait for seconds when it moves, so it moves last."""


def assign(offers: Mapping[str, Mapping[str, str]], owners: Mapping[str, str]) -> Mapping[str, str]:
    """The owner of each role in *offers* (roles and their groups, by member).

    Roles of one group get the same owner where one member offers them all. *owners* are those of now, by role. They
    keep what they have, unless a member would have at least two groups less than another one.
    """
    units = _units(offers)
    able = {unit: [name for name, roles in offers.items() if set(unit) <= roles.keys()] for unit in units}
    chosen: dict[tuple[str, ...], str] = {}
    for unit, members in able.items():
        present = [owners[role] for role in unit if owners.get(role) in members]
        if present:
            chosen[unit] = max(sorted(set(present)), key=present.count)
    load = dict.fromkeys(offers, 0)
    for member in chosen.values():
        load[member] += 1
    for unit, members in able.items():
        if unit not in chosen:
            chosen[unit] = min(members, key=lambda name: (load[name], name))
            load[chosen[unit]] += 1
    while (move := _move(able, chosen, load)) is not None:
        unit, member = move
        load[chosen[unit]] -= 1
        load[member] += 1
        chosen[unit] = member
    return {role: member for unit, member in chosen.items() for role in unit}


def _units(offers: Mapping[str, Mapping[str, str]]) -> Sequence[tuple[str, ...]]:
    """The roles that have one owner together: those of a group, or each by itself where no member offers the group.

    Where members name several groups for a role, the member counts that offers most roles.
    """
    group_of: dict[str, str] = {}
    for _, roles in sorted(offers.items(), key=lambda offer: (-len(offer[1]), offer[0])):
        group_of = {**roles, **group_of}
    groups: dict[str, set[str]] = {}
    for role, group in group_of.items():
        groups.setdefault(group, set()).add(role)
    units: list[tuple[str, ...]] = []
    for _, together in sorted(groups.items()):
        whole = any(together <= roles.keys() for roles in offers.values())
        units += [tuple(sorted(together))] if whole else [(role,) for role in sorted(together)]
    return units


def _move(
    able: Mapping[tuple[str, ...], Sequence[str]], chosen: Mapping[tuple[str, ...], str], load: Mapping[str, int]
) -> tuple[tuple[str, ...], str] | None:
    """A unit and the member that should have it instead of one that has at least two more."""
    for unit in sorted(chosen, key=lambda unit: (-load[chosen[unit]], BROKER_ROLE in unit, unit)):
        least = min(able[unit], key=lambda name: (load[name], name))
        if load[chosen[unit]] - load[least] > 1:
            return unit, least
    return None
