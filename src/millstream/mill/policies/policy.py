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
from millstream.mill.configured_stores import is_system
from millstream.mill.errors import PolicyError
from millstream.mill.policies.located_json import JsonArray, JsonObject, JsonString, Node, SourcePosition, parse_located

SPACES, DEFAULTS, IGNORED = "spaceDuplicationStorePolicies", "defaultPolicies", "spacesToIgnore"
SOURCE, DESTINATION = "srcStoreId", "destStoreId"


class Pair(msgspec.Struct, frozen=True):
    """Copy from one store to another, between spaces of the same name."""

    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source} → {self.destination}"


class PolicyWarning(msgspec.Struct, frozen=True):
    """Something in a policy that works and is probably not meant: ``code`` for programs, ``position`` where known."""

    code: str
    message: str
    position: SourcePosition | None = None

    def __str__(self) -> str:
        return f"{self.position}: {self.message}" if self.position else self.message


class PolicyPositions(msgspec.Struct, frozen=True):
    """The positions of the parts of a policy in its text: the names of ``spaces`` and of its fields, those of
    ``ignored`` spaces, and ``pairs`` by the space they are of (None: the defaults)."""

    spaces: Mapping[str, SourcePosition] = {}
    fields: Mapping[str, SourcePosition] = {}
    ignored: Mapping[str, SourcePosition] = {}
    pairs: Mapping[tuple[str | None, Pair], SourcePosition] = {}


class Policy(msgspec.Struct, frozen=True):
    """The policy of one account: pairs by space, pairs for all other spaces, and spaces that are left alone."""

    account: str
    spaces: Mapping[str, tuple[Pair, ...]] = {}
    defaults: tuple[Pair, ...] = ()
    ignored: tuple[str, ...] = ()

    def lookup(self, space: str) -> tuple[Pair, ...]:
        """The pairs that apply to *space*, in order (reference mill §1.3).

        None for system spaces ("x-…") and ignored ones; else the space's own, without the defaults; without own pairs,
        the defaults.
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


class ParsedPolicy(NamedTuple):
    """A policy, what its own text gives cause to warn of, and where its parts stand."""

    policy: Policy
    warnings: list[PolicyWarning]
    positions: PolicyPositions


def parse_policy(text: str, account: str) -> ParsedPolicy:
    """The policy of *account* in *text*, and what there is to say of the text.

    Raises :class:`PolicyError` with the file's name, line and column for anything that is not a policy; a comma
    before a closing bracket, as the document's sample has, is only warned of.
    """
    name = policy_file(account)
    parsed = parse_located(text, name)
    warnings = [
        PolicyWarning("trailing-comma", "a comma before the closing bracket", s) for s in parsed.trailing_commas
    ]
    root = _members(parsed.root, name, "a policy")
    _only(root, {SPACES, DEFAULTS, IGNORED}, name)
    spaces = (
        _members(root.members[SPACES], name, SPACES) if SPACES in root.members else JsonObject({}, {}, root.position)
    )
    stand: dict[tuple[str | None, Pair], SourcePosition] = {}
    own = {space: _pairs(node, name, warnings, space, stand) for space, node in spaces.members.items()}
    defaults = _pairs(root.members[DEFAULTS], name, warnings, None, stand) if DEFAULTS in root.members else ()
    ignored = _texts(root.members[IGNORED], name) if IGNORED in root.members else {}
    return ParsedPolicy(
        Policy(account, own, defaults, tuple(ignored)),
        warnings,
        PolicyPositions(spaces.names, root.names, ignored, stand),
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
    node: Node,
    name: str,
    warnings: list[PolicyWarning],
    space: str | None,
    stand: dict[tuple[str | None, Pair], SourcePosition],
) -> tuple[Pair, ...]:
    """The pairs in the list *node*, each once; where they stand is added to *stand*."""
    pairs: dict[Pair, None] = {}
    for item in _items(node, name, "a list of store pairs").items:
        pair = _pair(item, name)
        if pair in pairs:
            warnings.append(PolicyWarning("duplicate-pair", f"{pair} is listed twice", item.position))
        pairs[pair] = None
        stand.setdefault((space, pair), item.position)
    return tuple(pairs)


def _pair(node: Node, name: str) -> Pair:
    pair = _members(node, name, "a store pair")
    _only(pair, {SOURCE, DESTINATION}, name)
    for field in (SOURCE, DESTINATION):
        if field not in pair.members:
            raise _error(name, pair.position, f"field {field!r} of this store pair is missing: add the field")
    return Pair(_text(pair.members[SOURCE], name), _text(pair.members[DESTINATION], name))


def _texts(node: Node, name: str) -> dict[str, SourcePosition]:
    """The last position of each of the names in the list *node*."""
    return {_text(item, name): item.position for item in _items(node, name, "a list of names").items}


def _text(node: Node, name: str) -> str:
    if isinstance(node, JsonString) and not node.value:
        raise _error(name, node.position, "a name must not be empty")
    if not isinstance(node, JsonString):
        raise _error(name, node.position, "expected a name in double quotes")
    return node.value


def _items(node: Node, name: str, what: str) -> JsonArray:
    if not isinstance(node, JsonArray):
        raise _error(name, node.position, f"expected {what} in square brackets")
    return node


def _members(node: Node, name: str, what: str) -> JsonObject:
    if not isinstance(node, JsonObject):
        raise _error(name, node.position, f"expected {what} in curly brackets")
    return node


def _only(node: JsonObject, known: Iterable[str], name: str) -> None:
    for member, position in node.names.items():
        if member not in known:
            raise _error(name, position, f"unknown field {member!r}: use one of {', '.join(sorted(known))}")


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


def _error(name: str, position: SourcePosition, what: str) -> PolicyError:
    return PolicyError(f"{name}, {position}: {what}")
