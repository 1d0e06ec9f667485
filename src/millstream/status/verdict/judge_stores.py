"""Issues of stores: whether each is there, mounted, writable and has space left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from millstream.core.amounts import counted, size_text
from millstream.mill.configured_stores import QUARANTINE, is_system
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.issues import make_issue, named
from millstream.status.verdict.models import Issue


def store_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of each store that has answered, and of stores that are not in the settings."""
    known = known_copies(facts)
    yield from _not_configured(facts, known)
    for state in facts.stores:
        answer, name = state.answer, state.store
        if answer is None or state.hangs:
            continue
        expected = {space: items for (store, space), items in known.items() if store == name}
        page, total = f"/integrity?{urlencode({'store': name})}", sum(expected.values())
        at_stake = f"; {counted(total, 'copy is', 'copies are')} recorded there" if total else ""
        if answer.problem:
            text = f"the store {name} cannot be used: {answer.problem}{at_stake}"
            yield make_issue("store-unreachable", name, text, page, since=state.well_at, count=max(total, 1))
            continue
        there = set(answer.spaces) - answer.empty
        lost = {space: items for space, items in expected.items() if space not in there}
        count = sum(lost.values())
        if lost and not there - {QUARANTINE}:
            text = f"the store {name} lists none of the {counted(count, 'copy')} recorded there"
            yield make_issue("store-not-mounted", name, text, page, count=count)
        elif lost:
            text = f"the store {name} does not list {named('space', lost)} any more: {counted(count, 'copy')}"
            yield make_issue("space-missing", name, text, page, count=count)
        if answer.read_only:
            text = f"nothing can be written to the store {name}: {answer.read_only}"
            yield make_issue("store-read-only", name, text, page, since=state.well_at)
        if answer.free_bytes is not None and answer.free_bytes < facts.limits.least_free:
            text = f"the disk of the store {name} has {size_text(answer.free_bytes)} free"
            yield make_issue("store-full", name, text, page)


def _not_configured(facts: Facts, known: Mapping[tuple[str, str], int]) -> Iterator[Issue]:
    """Stores that policies or records name, and the settings of this process do not."""
    configured = {state.store for state in facts.stores}
    policies = () if facts.copies is None else facts.copies.policies.by_account.values()
    in_policies = {store for policy in policies for pair in policy.pairs for store in (pair.source, pair.destination)}
    for name in sorted({*in_policies, *(store for store, _ in known)} - configured):
        total = sum(items for (store, _), items in known.items() if store == name)
        text = f"the store {name} is not in the settings of this process"
        text += ", and a policy names it" if name in in_policies else ""
        text += f"; {counted(total, 'copy is', 'copies are')} recorded there" if total else ""
        yield make_issue("store-not-configured", name, text, "/policies", count=max(total, 1))


def known_copies(facts: Facts) -> Mapping[tuple[str, str], int]:
    """The items that the manifest knows to be there, by store and space."""
    rows = facts.snapshot.spaces
    return {(r.store, r.space): n for r in rows if (n := r.items - r.missing) > 0 and not is_system(r.space)}
