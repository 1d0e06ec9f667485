"""A policy as the rows of a form: read back, changed row by row, and written as the text that is the same document.

The form carries the whole text along and shows some spaces of it; what it brings back is put over that text. So a
policy of ten thousand spaces is edited forty at a time, and nothing is lost by not being shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from millstream.console.page_renderer import PageRequest
from millstream.mill.policies.policy import Pair, Policy

SHOWN = 40
"""Number of spaces with own pairs, and of ignored spaces, that a form shows at a time."""

DEFAULT = "d"
"""The name of the rows of the pairs for all other spaces."""


class SpaceRows(msgspec.Struct, frozen=True):
    """One space in the form: its place there, its name and its pairs."""

    place: str
    name: str
    pairs: Sequence[Pair]


class PolicyForm(msgspec.Struct, frozen=True):
    """What a form shows of ``policy``: some ``spaces`` and ``ignored`` ones, those whose names hold ``find``, from
    ``offset`` on.

    ``focus`` is the place where a row was added or removed; ``problems`` say what was not done.
    """

    policy: Policy
    spaces: Sequence[SpaceRows]
    ignored: Sequence[str]
    found: int
    found_ignored: int
    find: str = ""
    offset: int = 0
    focus: str = ""
    problems: Sequence[str] = ()


def show_form(
    policy: Policy, find: str = "", offset: int = 0, *, focus: str = "", problems: Sequence[str] = ()
) -> PolicyForm:
    """The form of *policy*, showing spaces whose names hold *find*, *offset* of them left out."""
    names = [name for name in policy.spaces if find in name]
    ignored = [name for name in policy.ignored if find in name]
    offset = offset // SHOWN * SHOWN if 0 <= offset < max(len(names), len(ignored)) else 0
    shown = [
        SpaceRows(str(place), name, policy.spaces[name]) for place, name in enumerate(names[offset : offset + SHOWN])
    ]
    return PolicyForm(
        policy, shown, ignored[offset : offset + SHOWN], len(names), len(ignored), find, offset, focus, problems
    )


def changed_form(call: PageRequest, before: Policy, stores: Sequence[str]) -> PolicyForm:
    """The form after one press of a button: its fields over *before*, and then what the button says.

    Buttons say ``add:PLACE``, ``drop:PLACE`` or ``drop:PLACE:ROW`` (PLACE is a number, ``d`` or ``i`` for the ignored
    ones), ``show:OFFSET``; any other name changes nothing further. Names that were typed into the fields for new spaces
    are added, whichever button was pressed.
    """
    rows = _FormRows(call, before)
    find, offset, focus = call.field("find"), number_of(call.field("offset")), ""
    verb, _, at = call.field("do").partition(":")
    if verb == "add" and at in rows.pairs:
        focus = rows.add_pair(at, stores)
    elif verb == "drop":
        focus = rows.drop(at)
    elif verb == "show":
        offset = number_of(at)
    new_space, new_ignored = call.field("new_space").strip(), call.field("new_ignored").strip()
    if new_space and rows.add_space(new_space, stores):
        find = find if find in new_space else ""
        offset = [name for name in rows.policy().spaces if find in name].index(new_space)
        focus = "new_space"
    if new_ignored and rows.ignore(new_ignored):
        focus = "new_ignored"
    focus = "" if verb in {"save", "check", "merge", "view"} else focus
    return show_form(rows.policy(), find, offset, focus=focus, problems=rows.problems)


class _FormRows:
    """The rows of a form over the policy that it was made of."""

    def __init__(self, call: PageRequest, before: Policy) -> None:
        self.problems: list[str] = []
        self._before = before
        self._shown = call.fields("shown")
        self._names: dict[str, str | None] = {}
        for was, name in zip(self._shown, call.fields("name"), strict=False):
            self._names[was] = self._renamed(was, name.strip())
        self.pairs = self._read_pairs(call)
        self._shown_ignored = call.fields("shown_ignored")
        self._ignored = [name.strip() for name in call.fields("ignored")]
        self._new_spaces: dict[str, tuple[Pair, ...]] = {}

    def policy(self) -> Policy:
        """The policy that the rows say."""
        spaces: dict[str, tuple[Pair, ...]] = {}
        places = {was: str(place) for place, was in enumerate(self._shown)}
        for space, pairs in self._before.spaces.items():
            name = self._names.get(space, space)
            if name is not None:
                spaces[name] = _once(self.pairs[places[space]]) if space in places else pairs
        kept = [name for name in self._before.ignored if name not in self._shown_ignored]
        ignored = dict.fromkeys([*kept, *filter(None, self._ignored)])
        order = {name: place for place, name in enumerate(self._before.ignored)}
        listed = sorted(ignored, key=lambda name: order.get(name, len(order)))
        return Policy(self._before.account, {**spaces, **self._new_spaces}, _once(self.pairs[DEFAULT]), tuple(listed))

    def add_pair(self, place: str, stores: Sequence[str]) -> str:
        pair = _new_pair(self.pairs[place], stores)
        if pair is None:
            few = "A pair needs two stores: add a store to `stores` in the settings."
            self.problems.append(few if len(stores) < 2 else "All pairs of stores are listed already.")
            return ""
        self.pairs[place].append(pair)
        return f"{place}:{len(_once(self.pairs[place])) - 1}"

    def drop(self, at: str) -> str:
        place, _, row = at.partition(":")
        if place == "i" and number_of(row) < len(self._ignored):
            del self._ignored[number_of(row)]
            return "new_ignored"
        if row and place in self.pairs and number_of(row) < len(self.pairs[place]):
            del self.pairs[place][number_of(row)]
            return f"add:{place}"
        if not row and place.isdecimal() and number_of(place) < len(self._shown):
            self._names[self._shown[number_of(place)]] = None
            return "new_space"
        return ""

    def add_space(self, name: str, stores: Sequence[str]) -> bool:
        if name in self.policy().spaces:
            self.problems.append(f"The space {name} has pairs of its own already.")
            return False
        first = _new_pair((), stores)
        self._new_spaces[name] = _once(self.pairs[DEFAULT]) or ((first,) if first else ())
        return True

    def ignore(self, name: str) -> bool:
        if name in self.policy().ignored:
            self.problems.append(f"The space {name} is never copied already.")
            return False
        self._ignored.append(name)
        return True

    def _renamed(self, was: str, name: str) -> str:
        taken = {*self._before.spaces, *filter(None, self._names.values())} - {was}
        if not name or name in taken:
            self.problems.append(
                f"The space {was} was not renamed: " + (f"{name} exists already." if name else "the new name is empty.")
            )
            return was
        return name

    def _read_pairs(self, call: PageRequest) -> dict[str, list[Pair]]:
        pairs: dict[str, list[Pair]] = {place: [] for place in (DEFAULT, *map(str, range(len(self._shown))))}
        for place, source, destination in zip(call.fields("of"), call.fields("from"), call.fields("to"), strict=False):
            if place in pairs and source and destination:
                pairs[place].append(Pair(source, destination))
        return pairs


def store_names(policy: Policy, configured: Mapping[str, str]) -> Sequence[str]:
    """The stores that a row may name: the configured ones, and others that *policy* names."""
    named = itertools.chain.from_iterable((pair.source, pair.destination) for pair in policy.pairs)
    return list(dict.fromkeys([*configured, *named]))


def _new_pair(pairs: Sequence[Pair], stores: Sequence[str]) -> Pair | None:
    """A pair that does not stand there yet, from the store that is copied from already if there is one."""
    sources = dict.fromkeys([*(pair.source for pair in pairs), *stores])
    found = (Pair(one, other) for one in sources for other in stores if one != other)
    return next(
        (pair for pair in found if pair not in pairs and Pair(pair.destination, pair.source) not in pairs), None
    )


def _once(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    return tuple(dict.fromkeys(pairs))


def number_of(text: str) -> int:
    """The number that *text* writes; 0 for any other text, which no page of ours sends."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
