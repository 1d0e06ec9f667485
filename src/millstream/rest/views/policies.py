"""Duplication policies: looked at, checked before they are saved, saved over a version, and taken back."""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from millstream.core.errors import BusyError, MillstreamError, NotFoundError
from millstream.mill.duplication.planning import duplication_rounds, plan_space_duplication
from millstream.mill.errors import PolicyError
from millstream.mill.policies.changes import PolicyChange, changes_between
from millstream.mill.policies.lint import lint_policies
from millstream.mill.policies.locations import MAX_BYTES
from millstream.mill.policies.policy import (
    Pair,
    ParsedPolicy,
    Policy,
    PolicyPositions,
    PolicyWarning,
    encode_policy,
    parse_accounts,
    policy_file,
    policy_text,
)
from millstream.mill.policies.repository import ACCOUNTS_FILE, Policies, check_account
from millstream.mill.policies.saving import (
    history,
    read_policy,
    save_policy,
    saved_accounts,
    version_of,
    withdraw_policy,
)
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing, Name, Number
from millstream.settings.console import Role

endpoints = EndpointRegistry()

MOST_PLANS = 200
"""Pairs of stores with a space that a what-if looks at: every item of them is listed."""

PREVIEW_SECONDS = 30.0
"""How long a what-if looks at pairs before it leaves the others out."""

MOST_DIFF_LINES = 20_000
"""Lines of a text that is compared line by line: the time grows with their square."""

_what_if_lock = threading.Lock()
_LOCK_SECONDS = 1.0

_SAVED, _RESTORED, _WITHDRAWN = "save policy", "restore policy", "withdraw policy"


class UnknownPolicyError(NotFoundError):
    """There is no policy of this account, or no such version of it."""


class PreviewBusyError(BusyError):
    """Another preview of a policy is being computed. Try again in a minute."""


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


class Withdrawal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason for a withdrawal."""

    reason: Annotated[str, msgspec.Meta(min_length=3, max_length=500)]


class PolicyRow(msgspec.Struct, frozen=True):
    """The policy of one account: its version, its numbers of entries, and its probable mistakes.

    ``in_force`` is False if the policy was withdrawn: nothing is copied by it.
    """

    account: str
    version: str
    spaces: int
    default_pairs: int
    ignored: int
    warnings: int
    error: str | None = None
    in_force: bool = True


class PolicyDetail(msgspec.Struct, frozen=True):
    """The policy of one account. ``version`` is the value of ``If-Match`` for saving a new one; ``in_force`` as in the
    list.
    """

    account: str
    version: str
    text: str
    spaces: Sequence[tuple[str, Sequence[str]]]
    defaults: Sequence[str]
    ignored: Sequence[str]
    warnings: Sequence[str]
    error: str | None = None
    in_force: bool = True


class PlanRow(msgspec.Struct, frozen=True):
    """The effects of a policy on one space between two stores, in items; ``bytes`` would be read.

    ``held`` items have no original and no recorded deletion. ``hold_reason`` is why the change guard would hold the
    whole plan until it is approved (None if it would not).
    """

    space: str
    pair: str
    copies: int
    changes: int
    deletes: int
    unchanged: int
    held: int
    bytes: int
    stops: bool = False
    hold_reason: str | None = None


class Checked(msgspec.Struct, frozen=True):
    """The preview of a policy: ``error`` is the place and reason if it is invalid; otherwise its warnings, its
    differences from the active policy (``changes`` by meaning, ``diff`` line by line), and its effects. ``unseen`` is
    the number of spaces that ``plans`` leaves out, ``plans_unknown`` the reason why its effects are not known.
    """

    error: str | None = None
    warnings: Sequence[str] = ()
    diff: Sequence[str] = ()
    plans: Sequence[PlanRow] = ()
    unseen: int = 0
    changes: Sequence[PolicyChange] = ()
    plans_unknown: str | None = None


class SavedPolicy(msgspec.Struct, frozen=True):
    """A saved policy: its version, and its number in the history."""

    account: str
    version: str
    number: int
    warnings: Sequence[str]


class VersionRow(msgspec.Struct, frozen=True):
    """A version of a policy; ``is_current`` marks the active one.

    ``saved_at`` (microseconds) and ``saved_by`` are from the operator audit log (None if it was saved in another way).
    """

    number: int
    version: str
    bytes: int
    is_current: bool
    saved_at: int | None = None
    saved_by: str | None = None


@endpoints.get("/policies")
def policies(app: AppContext, _ask: ApiRequest[Any, Any]) -> Listing[PolicyRow]:
    """List the policies of all accounts; withdrawn ones are last."""
    texts = _texts(app)
    gone = [account for account in saved_accounts(app.node.policies.location) if account not in texts]
    rows = [_row(app, account, data, texts) for account, data in texts.items()]
    rows += [msgspec.structs.replace(_row(app, one, _read(app, one), texts), in_force=False) for one in gone]
    return Listing(rows, total=len(rows))


@endpoints.get("/policies/{account}", AccountQuery)
def policy(app: AppContext, request: ApiRequest[AccountQuery, Any]) -> PolicyDetail:
    """Show the policy of an account, as text and in parts."""
    account = request.query.account
    data = _read(app, account)
    if data is None:
        raise UnknownPolicyError(
            f"account {account!r} has no policy in {app.node.policies.location.where}: check the name"
        )
    text, texts = data.decode("utf-8", "replace"), _texts(app)
    in_force = account in texts
    try:
        found = parsed(account, data).policy
    except PolicyError as error:
        return PolicyDetail(account, version_of(data), text, (), (), (), (), str(error), in_force)
    return PolicyDetail(
        account,
        version_of(data),
        text,
        [(space, list(map(str, pairs))) for space, pairs in found.spaces.items()],
        list(map(str, found.defaults)),
        found.ignored,
        _warnings(app, account, data, texts),
        in_force=in_force,
    )


@endpoints.post("/policies/{account}/check", AccountQuery, PolicyText, Role.VIEWER)
def check_policy(app: AppContext, request: ApiRequest[AccountQuery, PolicyText]) -> Checked:
    """Preview a policy, and change nothing."""
    account, data = request.query.account, request.body.text.encode("utf-8", "surrogatepass")
    check_account(account)
    try:
        proposed = parsed(account, data).policy
    except PolicyError as error:
        return Checked(str(error))
    texts = _texts(app)
    before = (texts.get(account) or b"").decode("utf-8", "replace")
    current, warned = in_force(app, account), _warnings(app, account, data, texts)
    diff = _diff(before.splitlines(), request.body.text.splitlines())
    changes = changes_between(current, proposed)
    try:
        plans, unseen = _what_if(app, current, proposed)
    except MillstreamError as error:
        return Checked(None, warned, diff, changes=changes, plans_unknown=str(error))
    return Checked(None, warned, diff, plans, unseen, changes)


@endpoints.put("/policies/{account}", AccountQuery, PolicyText, Role.ADMIN)
def put_policy(app: AppContext, request: ApiRequest[AccountQuery, PolicyText]) -> SavedPolicy:
    """Save a policy in place of the version that ``If-Match`` names (``none``: there is none yet), and apply it."""
    return _save(app, request, request.body.text, _SAVED)


@endpoints.post("/policies/{account}/versions/{number}/restore", VersionQuery, role=Role.ADMIN, conditional=True)
def restore_policy(app: AppContext, request: ApiRequest[VersionQuery, Any]) -> SavedPolicy:
    """Put an older version in force again, in place of the version that ``If-Match`` names, as a new version."""
    text = policy_version(app, request).text
    return _save(app, request, text, _RESTORED, restored=request.query.number)


@endpoints.post("/policies/{account}/withdraw", AccountQuery, Withdrawal, Role.ADMIN, conditional=True)
def withdraw(app: AppContext, request: ApiRequest[AccountQuery, Withdrawal]) -> PolicyDetail:
    """Withdraw a policy: nothing is copied by it until it is saved again; all versions are kept."""
    account = request.query.account
    app.operator_log.check()
    withdraw_policy(app.node.policies.location, account, if_match=request.if_match)
    app.operator_log.add(
        request.principal.name, _WITHDRAWN, account, reason=request.body.reason, version=request.if_match
    )
    return policy(app, request)


@endpoints.get("/policies/{account}/versions", AccountQuery)
def policy_versions(app: AppContext, request: ApiRequest[AccountQuery, Any]) -> Listing[VersionRow]:
    """List all saved versions of a policy, the latest first."""
    account = request.query.account
    current = version_of(_read(app, account))
    found = [(number, version_of(data), len(data)) for number, data in history(app.node.policies.location, account)]
    last = max((number for number, version, _ in found if version == current), default=0)
    saves = {
        event.facts.get("number"): (event.at, event.user)
        for action in (_SAVED, _RESTORED)
        for event in app.operator_log.of(action, account)
    }
    rows = [
        VersionRow(number, version, size, number == last, *saves.get(number, ()))
        for number, version, size in reversed(found)
    ]
    return Listing(rows, total=len(rows))


@endpoints.get("/policies/{account}/versions/{number}", VersionQuery)
def policy_version(app: AppContext, request: ApiRequest[VersionQuery, Any]) -> PolicyText:
    """Get the text of one version of a policy."""
    account, number = request.query.account, request.query.number
    check_account(account)
    for found, data in history(app.node.policies.location, account):
        if found == number:
            return PolicyText(data.decode("utf-8", "replace"))
    raise UnknownPolicyError(
        f"the policy of account {account!r} has no version {number}; `/policies/{account}/versions` lists its versions"
    )


@endpoints.get("/policies/{account}/versions/{number}/plans", VersionQuery)
def version_plans(app: AppContext, request: ApiRequest[VersionQuery, Any]) -> Listing[PlanRow]:
    """Preview an older version of a policy, space by space."""
    account, text = request.query.account, policy_version(app, request).text
    proposed = parsed(account, text.encode("utf-8", "surrogatepass")).policy
    plans, unseen = _what_if(app, in_force(app, account), proposed)
    return Listing(plans, total=len(plans) + unseen)


def accounts(app: AppContext) -> Sequence[str]:
    """The accounts whose policies are in force."""
    data = app.node.policies.location.read(ACCOUNTS_FILE)
    return parse_accounts(data.decode("utf-8-sig", "replace"), ACCOUNTS_FILE) if data is not None else ()


def in_force(app: AppContext, account: str) -> Policy:
    """The policy of *account* as it is now; an empty one where there is none, it was withdrawn, or is not a policy."""
    if account not in accounts(app):
        return Policy(account)
    try:
        return parsed(account, _read(app, account) or encode_policy(Policy(account))).policy
    except PolicyError:
        return Policy(account)


@lru_cache(maxsize=8)
def parsed(account: str, data: bytes) -> ParsedPolicy:
    """The policy of *account* in *data*, as ``read_policy``: kept, since a page asks for the same one several times.

    Raises :class:`~millstream.mill.errors.PolicyError`.
    """
    return read_policy(data, account)


def empty_policy() -> str:
    """The text of a policy that copies nothing, to begin with."""
    return policy_text(Policy(""))


def _save(app: AppContext, request: ApiRequest[Any, Any], text: str, action: str, **facts: Any) -> SavedPolicy:
    """Put *text* in force over the version of the request's ``If-Match``, and record it as *action*."""
    account, data = request.query.account, text.encode("utf-8", "surrogatepass")
    app.operator_log.check()
    saved = save_policy(app.node.policies.location, account, data, if_match=request.if_match)
    app.operator_log.add(request.principal.name, action, account, **saved.facts, **facts)
    return SavedPolicy(account, saved.version, saved.number, _warnings(app, account, data, _texts(app)))


def _read(app: AppContext, account: str) -> bytes | None:
    check_account(account)
    return app.node.policies.location.read(policy_file(account))


def _texts(app: AppContext) -> Mapping[str, bytes | None]:
    """The text of the policy of each account on the list of accounts."""
    return {account: _read(app, account) for account in accounts(app)}


def _row(app: AppContext, account: str, data: bytes | None, texts: Mapping[str, bytes | None]) -> PolicyRow:
    row = _summed_up(account, data or b"", version_of(data))
    if row.error is not None or data is None:
        return row
    return msgspec.structs.replace(row, warnings=len(_warnings(app, account, data, texts)))


@lru_cache(maxsize=100)
def _summed_up(account: str, data: bytes, version: str) -> PolicyRow:
    """Kept, since a policy may name many thousand spaces, and is looked at far more often than it changes."""
    try:
        found = parsed(account, data).policy
    except PolicyError as error:
        return PolicyRow(account, version, 0, 0, 0, 0, str(error))
    return PolicyRow(account, version, len(found.spaces), len(found.defaults), len(found.ignored), 0)


def _warnings(app: AppContext, account: str, data: bytes, texts: Mapping[str, bytes | None]) -> Sequence[str]:
    """What in the policy *data* is probably not meant, by itself and beside the others; it can be read."""
    beside = sorted({name: text for name, text in texts.items() if text is not None} | {account: data})
    every = tuple((name, data if name == account else texts[name] or b"") for name in beside)
    return _linted(every, tuple(app.node.settings.store_urls))[account]


@lru_cache(maxsize=8)
def _linted(texts: tuple[tuple[str, bytes], ...], stores: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """What to warn of in each of *texts*, but for those that are no policies; kept as a policy is."""
    found, warned, positions = dict[str, Policy](), dict[str, list[PolicyWarning]](), dict[str, PolicyPositions]()
    for account, data in texts:
        with contextlib.suppress(PolicyError):
            found[account], warned[account], positions[account] = parsed(account, data)
    linted = lint_policies(Policies(found, warned, positions), stores)
    return {account: [f"{one.code}: {one}" for one in each] for account, each in linted.items()}


def _diff(before: Sequence[str], after: Sequence[str]) -> Sequence[str]:
    if max(len(before), len(after)) > MOST_DIFF_LINES:
        return [f"(not compared line by line: a text has more than {MOST_DIFF_LINES:,} lines)"]
    return list(difflib.unified_diff(before, after, "in force", "proposed", lineterm=""))


def _what_if(app: AppContext, current: Policy, proposed: Policy) -> tuple[Sequence[PlanRow], int]:
    """What *proposed* would do, and the number of spaces that are left out. One at a time: every item is listed, while
    the other threads of the console are for other requests. Raises :class:`PreviewBusyError`."""
    if not _what_if_lock.acquire(timeout=_LOCK_SECONDS):
        raise PreviewBusyError
    try:
        return _compare_plans(app, current, proposed)
    finally:
        _what_if_lock.release()


def _compare_plans(app: AppContext, current: Policy, proposed: Policy) -> tuple[Sequence[PlanRow], int]:
    node, rows, unseen = app.node, list[PlanRow](), 0
    wanted, before = (list(_pairs(app, each)) for each in (proposed, current))
    deadline = app.clock.monotonic() + PREVIEW_SECONDS
    for pair, space in wanted:
        if len(rows) >= MOST_PLANS or app.clock.monotonic() >= deadline:
            unseen += 1
            continue
        plan = plan_space_duplication(
            node.stores.providers, node.stores.manifest, pair, space, None,
            change_guard=node.stores.change_guard, outbox=node.stores.outbox,
        )  # fmt: skip
        counts = (plan.copies, plan.changes, plan.deletes, plan.same, plan.held, plan.bytes)
        rows.append(PlanRow(space, str(pair), *counts, hold_reason=plan.hold_reason))
    stopped = [one for one in before if one not in set(wanted)]
    rows += [PlanRow(space, str(pair), 0, 0, 0, 0, 0, 0, stops=True) for pair, space in stopped[:MOST_PLANS]]
    return rows, unseen + max(0, len(stopped) - MOST_PLANS)


def _pairs(app: AppContext, one: Policy) -> Iterator[tuple[Pair, str]]:
    for pairs in duplication_rounds(Policies({one.account: one}), app.node.stores.providers):
        yield from pairs
