"""Duplication policies: looked at, checked before they are saved, saved over a version, and taken back."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from millstream.console_settings import Role
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.mill.errors import PolicyError
from millstream.mill.policy import Pair, Policy, Warned, encode_policy, policy_file
from millstream.mill.policy_lint import lint_policy
from millstream.mill.policy_places import MAX_BYTES
from millstream.mill.policy_repository import ACCOUNTS_FILE, Policies, check_account
from millstream.mill.policy_saving import history, read_policy, save_policy, version_of
from millstream.mill.producer import duplication_rounds, plan_space_duplication
from millstream.rest.desk import Desk
from millstream.rest.endpoint import Ask, Endpoints, Listing, Name, Number

endpoints = Endpoints()

MOST_PLANS = 200
"""Pairs of stores with a space that a what-if looks at: every item of them is listed."""

_EMPTY = '{\n  "spaceDuplicationStorePolicies": {},\n  "defaultPolicies": [],\n  "spacesToIgnore": []\n}\n'


class UnknownPolicyError(NotFoundError):
    """There is no policy of this account, or no such version of it."""


class AccountQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``account`` is the name of the account."""

    account: Name


class VersionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Version ``number`` in the history of ``account``."""

    account: Name
    number: Number


class PolicyText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a policy file (docs/formats/duplication-policy.md)."""

    text: Annotated[str, msgspec.Meta(max_length=MAX_BYTES)]


class PolicyRow(msgspec.Struct, frozen=True):
    """The policy of one account: its version, how much stands in it, and how much of that is probably not meant."""

    account: str
    version: str
    spaces: int
    default_pairs: int
    ignored: int
    warnings: int
    error: str | None = None


class PolicyDetail(msgspec.Struct, frozen=True):
    """The policy of one account. ``version`` is what ``If-Match`` has to say when it is saved over."""

    account: str
    version: str
    text: str
    spaces: Sequence[tuple[str, Sequence[str]]]
    defaults: Sequence[str]
    ignored: Sequence[str]
    warnings: Sequence[str]
    error: str | None = None


class PlanRow(msgspec.Struct, frozen=True):
    """What a policy would cause for one space between two stores, in items; ``bytes`` would be read."""

    space: str
    pair: str
    copies: int
    changes: int
    deletes: int
    unchanged: int
    held: int
    bytes: int
    stops: bool = False


class Checked(msgspec.Struct, frozen=True):
    """What a policy would be: ``error`` says where it is none; else what to warn of, how it differs from the one in
    force, and what it would cause. ``unseen`` counts the spaces beyond those that ``plans`` speaks of."""

    error: str | None = None
    warnings: Sequence[str] = ()
    diff: Sequence[str] = ()
    plans: Sequence[PlanRow] = ()
    unseen: int = 0


class SavedPolicy(msgspec.Struct, frozen=True):
    """A policy that was saved: its version now, and its number in the history."""

    account: str
    version: str
    number: int
    warnings: Sequence[str]


class VersionRow(msgspec.Struct, frozen=True):
    """One version that was in force; ``is_current`` where it is so now."""

    number: int
    version: str
    bytes: int
    is_current: bool


@endpoints.get("/policies")
def policies(desk: Desk, _ask: Ask[Any, Any]) -> Listing[PolicyRow]:
    """List the policies of all accounts."""
    rows = [_row(desk, account) for account in accounts(desk)]
    return Listing(rows, total=len(rows))


@endpoints.get("/policies/{account}", AccountQuery)
def policy(desk: Desk, ask: Ask[AccountQuery, Any]) -> PolicyDetail:
    """The policy of an account, as text and in parts."""
    account = ask.query.account
    data = _read(desk, account)
    if data is None:
        raise UnknownPolicyError(f"there is no policy of the account {account!r} in {desk.node.policy_place.where}")
    text, stores = data.decode("utf-8", "replace"), tuple(desk.node.settings.store_urls)
    try:
        parsed, warned = read_policy(data, account)
    except PolicyError as error:
        return PolicyDetail(account, version_of(data), text, (), (), (), (), str(error))
    return PolicyDetail(
        account,
        version_of(data),
        text,
        [(space, list(map(str, pairs))) for space, pairs in parsed.spaces.items()],
        list(map(str, parsed.defaults)),
        parsed.ignored,
        _texts(warned, parsed, stores),
    )


@endpoints.post("/policies/{account}/check", AccountQuery, PolicyText, Role.VIEWER)
def check_policy(desk: Desk, ask: Ask[AccountQuery, PolicyText]) -> Checked:
    """Say what a policy would be and cause, and change nothing."""
    account, data = ask.query.account, ask.body.text.encode("utf-8", "surrogatepass")
    check_account(account)
    stores = tuple(desk.node.settings.store_urls)
    try:
        proposed, warned = read_policy(data, account)
    except PolicyError as error:
        return Checked(str(error))
    before = (_read(desk, account) or b"").decode("utf-8", "replace")
    diff = difflib.unified_diff(before.splitlines(), ask.body.text.splitlines(), "in force", "proposed", lineterm="")
    try:
        plans, unseen = _what_if(desk, account, proposed)
    except MillstreamError as error:
        return Checked(None, [*_texts(warned, proposed, stores), f"what-if: {error}"], list(diff))
    return Checked(None, _texts(warned, proposed, stores), list(diff), plans, unseen)


@endpoints.put("/policies/{account}", AccountQuery, PolicyText, Role.ADMIN)
def put_policy(desk: Desk, ask: Ask[AccountQuery, PolicyText]) -> SavedPolicy:
    """Put a policy in force over the version that ``If-Match`` names (``none``: there is none yet)."""
    account = ask.query.account
    data = ask.body.text.encode("utf-8", "surrogatepass")
    saved = save_policy(desk.node.policy_place, account, data, if_match=ask.if_match)
    desk.trail.add(ask.who.name, "save policy", account, version=saved.version, number=saved.number)
    desk.node.forget_policies()
    return SavedPolicy(account, saved.version, saved.number, list(map(str, saved.warnings)))


@endpoints.get("/policies/{account}/versions", AccountQuery)
def policy_versions(desk: Desk, ask: Ask[AccountQuery, Any]) -> Listing[VersionRow]:
    """List every version of a policy that was saved, the latest first."""
    account = ask.query.account
    current = version_of(_read(desk, account))
    found = [(number, version_of(data), len(data)) for number, data in history(desk.node.policy_place, account)]
    last = max((number for number, version, _ in found if version == current), default=0)
    rows = [VersionRow(number, version, size, number == last) for number, version, size in reversed(found)]
    return Listing(rows, total=len(rows))


@endpoints.get("/policies/{account}/versions/{number}", VersionQuery)
def policy_version(desk: Desk, ask: Ask[VersionQuery, Any]) -> PolicyText:
    """The text of one version of a policy."""
    account, number = ask.query.account, ask.query.number
    check_account(account)
    for found, data in history(desk.node.policy_place, account):
        if found == number:
            return PolicyText(data.decode("utf-8", "replace"))
    raise UnknownPolicyError(f"the policy of {account!r} has no version {number}")


def accounts(desk: Desk) -> Sequence[str]:
    """The accounts that have a policy."""
    from millstream.mill.policy import parse_accounts

    data = desk.node.policy_place.read(ACCOUNTS_FILE)
    return parse_accounts(data.decode("utf-8-sig", "replace"), ACCOUNTS_FILE) if data is not None else ()


def empty_policy() -> str:
    """The text of a policy that copies nothing, to begin with."""
    return _EMPTY


def _read(desk: Desk, account: str) -> bytes | None:
    check_account(account)
    return desk.node.policy_place.read(policy_file(account))


def _row(desk: Desk, account: str) -> PolicyRow:
    data = _read(desk, account)
    return _summed_up(account, data or b"", version_of(data), tuple(desk.node.settings.store_urls))


@lru_cache(maxsize=100)
def _summed_up(account: str, data: bytes, version: str, stores: Sequence[str]) -> PolicyRow:
    """Kept, since a policy may name many thousand spaces, and is looked at far more often than it changes."""
    try:
        parsed, warned = read_policy(data, account)
    except PolicyError as error:
        return PolicyRow(account, version, 0, 0, 0, 0, str(error))
    warnings = len(_texts(warned, parsed, stores))
    return PolicyRow(account, version, len(parsed.spaces), len(parsed.defaults), len(parsed.ignored), warnings)


def _texts(warned: Sequence[Warned], parsed: Policy, stores: Sequence[str]) -> list[str]:
    return [f"{one.code}: {one}" for one in [*warned, *lint_policy(parsed, list(stores))]]


def _what_if(desk: Desk, account: str, proposed: Policy) -> tuple[Sequence[PlanRow], int]:
    node, rows, unseen = desk.node, list[PlanRow](), 0
    current, _ = read_policy(_read(desk, account) or encode_policy(Policy(account)), account)
    wanted, before = (list(_pairs(desk, each)) for each in (proposed, current))
    for pair, space in wanted:
        if len(rows) >= MOST_PLANS:
            unseen += 1
            continue
        plan = plan_space_duplication(node.providers, node.manifest, pair, space, None)
        counts = (plan.copies, plan.changes, plan.deletes, plan.same, plan.held, plan.bytes)
        rows.append(PlanRow(space, str(pair), *counts))
    stopped = [one for one in before if one not in set(wanted)]
    rows += [PlanRow(space, str(pair), 0, 0, 0, 0, 0, 0, stops=True) for pair, space in stopped[:MOST_PLANS]]
    return rows, unseen + max(0, len(stopped) - MOST_PLANS)


def _pairs(desk: Desk, one: Policy) -> Iterator[tuple[Pair, str]]:
    for pairs in duplication_rounds(Policies({one.account: one}), desk.node.providers):
        yield from pairs
