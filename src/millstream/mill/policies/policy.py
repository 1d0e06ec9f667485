"""Duplication policies: which spaces are copied from which store to which others.

One file an account, ``{subdomain}-duplication-policy.json``, as in the seed document duracloud-mill ("Duplication
Policies"), with the later additions ``defaultPolicies`` and ``spacesToIgnore``. The format, with the rules of lookup,
is ``docs/formats/duplication-policy.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millstream.core.canonical import canonical_json
from millstream.mill.errors import PolicyError
from millstream.mill.policies.located_json import Items, Members, Node, Spot, Text, parse_located
from millstream.mill.providers import is_system

SPACES, DEFAULTS, IGNORED = "spaceDuplicationStorePolicies", "defaultPolicies", "spacesToIgnore"
SOURCE, DESTINATION = "srcStoreId", "destStoreId"


class Pair(msgspec.Struct, frozen=True):
    """Copy from one store to another, between spaces of the same name."""

    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source} → {self.destination}"


class Warned(msgspec.Struct, frozen=True):
    """Something in a policy that works and is probably not meant: ``code`` for programs, ``spot`` where known."""

    code: str
    message: str
    spot: Spot | None = None

    def __str__(self) -> str:
        return f"{self.spot}: {self.message}" if self.spot else self.message


class Spots(msgspec.Struct, frozen=True):
    """Where the parts of a policy stand in its text: the names of ``spaces`` and of its fields, those of ``ignored``
    spaces, and ``pairs`` by the space they are of (None: the defaults)."""

    spaces: Mapping[str, Spot] = {}
    fields: Mapping[str, Spot] = {}
    ignored: Mapping[str, Spot] = {}
    pairs: Mapping[tuple[str | None, Pair], Spot] = {}


class Policy(msgspec.Struct, frozen=True):
    """The policy of one account: pairs by space, pairs for all other spaces, and spaces that are left alone."""

    account: str
    spaces: Mapping[str, tuple[Pair, ...]] = {}
    defaults: tuple[Pair, ...] = ()
    ignored: tuple[str, ...] = ()

    def lookup(self, space: str) -> tuple[Pair, ...]:
        """The pairs that apply to *space*, in order (reference mill §1.3).

        None for system spaces ("x-…") and ignored ones; else the space's own, without the defaults; where it has none
        of its own, the defaults.
        """
        if is_system(space) or space in self.ignored:
            return ()
        return self.spaces.get(space) or self.defaults

    def sources(self, space: str) -> frozenset[str]:
        """The stores whose copy of *space* is the original: copied from, and not copied to."""
        pairs = self.lookup(space)
        return frozenset(pair.source for pair in pairs) - {pair.destination for pair in pairs}

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair that the policy names, once."""
        every = [pair for pairs in self.spaces.values() for pair in pairs]
        return tuple(dict.fromkeys([*every, *self.defaults]))


class Parsed(NamedTuple):
    """A policy, what its own text gives cause to warn of, and where its parts stand."""

    policy: Policy
    warnings: list[Warned]
    spots: Spots


def parse_policy(text: str, account: str) -> Parsed:
    """The policy of *account* in *text*, and what there is to say of the text.

    Raises :class:`PolicyError` with the file's name, line and column for anything that is not a policy; a comma
    before a closing bracket, as the document's sample has, is only warned of.
    """
    name = policy_file(account)
    parsed = parse_located(text, name)
    warnings = [Warned("trailing-comma", "a comma before the closing bracket", s) for s in parsed.trailing_commas]
    root = _members(parsed.root, name, "a policy")
    _only(root, {SPACES, DEFAULTS, IGNORED}, name)
    spaces = _members(root.members[SPACES], name, SPACES) if SPACES in root.members else Members({}, {}, root.spot)
    stand: dict[tuple[str | None, Pair], Spot] = {}
    own = {space: _pairs(node, name, warnings, space, stand) for space, node in spaces.members.items()}
    defaults = _pairs(root.members[DEFAULTS], name, warnings, None, stand) if DEFAULTS in root.members else ()
    ignored = _texts(root.members[IGNORED], name) if IGNORED in root.members else {}
    return Parsed(
        Policy(account, own, defaults, tuple(ignored)), warnings, Spots(spaces.names, root.names, ignored, stand)
    )


def parse_accounts(text: str, name: str) -> tuple[str, ...]:
    """The accounts that ``duplication-accounts.json`` lists, each once."""
    return tuple(_texts(parse_located(text, name).root, name))


def encode_policy(policy: Policy) -> bytes:
    """*policy* in the form of its file, as canonical JSON."""
    return canonical_json(
        {
            SPACES: {space: _builtin_pairs(pairs) for space, pairs in policy.spaces.items()},
            DEFAULTS: _builtin_pairs(policy.defaults),
            IGNORED: list(policy.ignored),
        }
    )


def policy_text(policy: Policy) -> str:
    """*policy* as people write it: a line a pair, so that versions can be compared line by line."""
    spaces = [f"    {_quoted(space)}: {_lines(pairs, '    ')}" for space, pairs in policy.spaces.items()]
    members = [
        f"{_quoted(SPACES)}: {{{_inset(spaces, '  ')}}}",
        f"{_quoted(DEFAULTS)}: {_lines(policy.defaults, '  ')}",
        f"{_quoted(IGNORED)}: [{', '.join(map(_quoted, policy.ignored))}]",
    ]
    return "{" + _inset([f"  {member}" for member in members], "") + "}\n"


def policy_file(account: str) -> str:
    """The file name of an account's policy (seed document, "Duplication Policy Naming Convention")."""
    return f"{account}-duplication-policy.json"


def _pairs(
    node: Node, name: str, warnings: list[Warned], space: str | None, stand: dict[tuple[str | None, Pair], Spot]
) -> tuple[Pair, ...]:
    """The pairs in the list *node*, each once; where they stand is added to *stand*."""
    pairs: dict[Pair, None] = {}
    for item in _items(node, name, "a list of store pairs").items:
        pair = _pair(item, name)
        if pair in pairs:
            warnings.append(Warned("duplicate-pair", f"{pair} stands twice", item.spot))
        pairs[pair] = None
        stand.setdefault((space, pair), item.spot)
    return tuple(pairs)


def _pair(node: Node, name: str) -> Pair:
    pair = _members(node, name, "a store pair")
    _only(pair, {SOURCE, DESTINATION}, name)
    for field in (SOURCE, DESTINATION):
        if field not in pair.members:
            raise _error(name, pair.spot, f"this store pair has no {field!r}")
    return Pair(_text(pair.members[SOURCE], name), _text(pair.members[DESTINATION], name))


def _texts(node: Node, name: str) -> dict[str, Spot]:
    """Where each of the names in the list *node* stands last."""
    return {_text(item, name): item.spot for item in _items(node, name, "a list of names").items}


def _text(node: Node, name: str) -> str:
    if not isinstance(node, Text) or not node.value:
        raise _error(name, node.spot, "a name in double quotes should stand here")
    return node.value


def _items(node: Node, name: str, what: str) -> Items:
    if not isinstance(node, Items):
        raise _error(name, node.spot, f"{what} in square brackets should stand here")
    return node


def _members(node: Node, name: str, what: str) -> Members:
    if not isinstance(node, Members):
        raise _error(name, node.spot, f"{what} in curly brackets should stand here")
    return node


def _only(node: Members, known: Iterable[str], name: str) -> None:
    for member, spot in node.names.items():
        if member not in known:
            raise _error(name, spot, f"unknown field {member!r}; known are {', '.join(sorted(known))}")


def _builtin_pairs(pairs: Iterable[Pair]) -> list[dict[str, str]]:
    return [{SOURCE: pair.source, DESTINATION: pair.destination} for pair in pairs]


def _lines(pairs: Iterable[Pair], indent: str) -> str:
    lines = [
        f"{indent}  {{{_quoted(SOURCE)}: {_quoted(one.source)}, {_quoted(DESTINATION)}: {_quoted(one.destination)}}}"
        for one in pairs
    ]
    return f"[{_inset(lines, indent)}]"


def _inset(lines: Sequence[str], indent: str) -> str:
    return "\n" + ",\n".join(lines) + f"\n{indent}" if lines else ""


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode("utf-8")


def _error(name: str, spot: Spot, what: str) -> PolicyError:
    return PolicyError(f"{name}, {spot}: {what}")
