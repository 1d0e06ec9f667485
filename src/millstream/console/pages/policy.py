"""The pages of policies: the accounts, and the editor of one policy as a form or as text, with its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from millstream.console.page_renderer import PageRenderer, PageRequest, body_of
from millstream.console.policy_form import PolicyForm, changed_form, number_of, show_form, store_names
from millstream.core.errors import NotFoundError
from millstream.mill.configured_stores import is_system
from millstream.mill.errors import PolicyError
from millstream.mill.policies.changes import PolicyChange, changes_between, merge_policies
from millstream.mill.policies.policy import Policy, policy_text
from millstream.mill.policies.saving import ABSENT, PolicyConflictError, history, version_of
from millstream.rest.access_control import PermissionDeniedError
from millstream.rest.views import policies, system
from millstream.settings.console import Role

_SUGGESTED = 500
"""Names of spaces that the field for a new one suggests."""


class PolicyDraft(msgspec.Struct, frozen=True):
    """What the editor holds: the text, and its form where that is what is looked at; ``version`` is what it began
    with, ``trouble`` says why a text has no form."""

    text: str
    version: str
    form: PolicyForm | None = None
    trouble: str | None = None


def routes(pages: PageRenderer) -> list[BaseRoute]:
    """The routes of these pages."""
    return [
        Route("/policies", pages.show("policies.html", list_policies)),
        Route("/policies/new", pages.show("policies.html", new_policy)),
        Route("/policies/{account}", pages.show("policy.html", show_policy)),
        Route("/policies/{account}", pages.act(edit_policy, Role.VIEWER, "policy.html"), methods=["POST"]),
        Route("/policies/{account}/restore", pages.act(restore_policy, Role.ADMIN), methods=["POST"]),
        Route("/policies/{account}/withdraw", pages.act(withdraw_policy, Role.ADMIN), methods=["POST"]),
    ]


def list_policies(call: PageRequest) -> Mapping[str, Any]:
    """The policies of all accounts, and the stores."""
    found, stores = policies.policies(call.app, call.ask()), system.stores(call.app, call.ask()).items
    account = "" if found.items else call.app.node.settings.mill.account
    return {"policies": found, "stores": stores, "account": account}


def new_policy(call: PageRequest) -> Response:
    """Go to the page of an account, whether it has a policy or not."""
    account = call.query.get("account", "").strip()
    return RedirectResponse(_page_of(account) if account else "/policies", 303)


def show_policy(call: PageRequest) -> Mapping[str, Any]:
    """The policy of an account in its editor; with ``number`` an older version, to look at."""
    page, number = _page(call), call.query.get("number")
    text, view = page["text"], call.query.get("view", "form")
    if number:
        older = policies.policy_version(call.app, call.ask(policies.VersionQuery, number=number))
        text = older.text
        page |= {"checked": policies.check_policy(call.app, call.ask(policies.AccountQuery, older)), "older": number}
    return page | _shown(call, _draft_of(call, text, page["version"], view))


def edit_policy(call: PageRequest) -> Mapping[str, Any] | Response:
    """Change the draft by a press of a button, look at what it would do, or save it over the version it began with."""
    draft, do = _draft(call), call.field("do")
    if do == "save":
        return _save(call, draft)
    page = _page(call)
    if do.startswith("merge:") and (merged := _merged(call, draft, do.removeprefix("merge:"), page["text"])):
        draft = merged
    page |= _shown(call, draft)
    if do == "check" or do.startswith("merge:"):
        body = body_of(policies.PolicyText, text=draft.text)
        page["checked"] = policies.check_policy(call.app, call.ask(policies.AccountQuery, body))
    return {**page, "touched": True}


def restore_policy(call: PageRequest) -> Mapping[str, Any] | Response:
    """Put an older version in force again."""
    account, number = call.path["account"], call.field("number")
    back, version = _page_of(account), call.field("version")
    if call.field("confirmed") == "yes":
        ask = call.ask(policies.VersionQuery, number=number, if_match=version)
        saved = policies.restore_policy(call.app, ask)
        return call.redirect_with_notice(back, f"Version {number} is in force again, as number {saved.number}.")
    older = policies.policy_version(call.app, call.ask(policies.VersionQuery, number=number))
    checked = policies.check_policy(call.app, call.ask(policies.AccountQuery, older))
    return {
        "what": f"Restore version {number}",
        "effect": f"Version {number} of the policy of {account} is in force again; no version is lost.",
        "details": [],
        "changes": checked.changes,
        "diff": checked.diff,
        "action": f"{back}/restore",
        "hidden": [("number", number), ("version", version)],
        "reason_needed": False,
        "danger": False,
        "back": back,
    }


def withdraw_policy(call: PageRequest) -> Mapping[str, Any] | Response:
    """Take an account off the list of accounts."""
    account, version = call.path["account"], call.field("version")
    if call.field("confirmed") == "yes":
        body = body_of(policies.Withdrawal, reason=call.field("reason").strip())
        policies.withdraw(call.app, call.ask(policies.AccountQuery, body, if_match=version))
        return call.redirect_with_notice(_page_of(account), "Policy withdrawn. Save it to put it in force again.")
    return {
        "what": f"Withdraw {account}",
        "effect": f"The policy of {account} copies nothing until it is saved again.",
        "details": ["Existing copies stay and are still checked.", "All versions of the policy are kept."],
        "action": f"{_page_of(account)}/withdraw",
        "hidden": [("version", version)],
        "reason_needed": True,
        "danger": True,
        "back": _page_of(account),
    }


def _save(call: PageRequest, draft: PolicyDraft) -> Mapping[str, Any] | Response:
    if not call.principal.role.covers(Role.ADMIN):
        role = call.principal.role.value
        raise PermissionDeniedError(
            f"saving a policy requires the role admin, but the user {call.principal.name} has the role {role}: "
            "sign in as a user with the role admin"
        )
    body = body_of(policies.PolicyText, text=draft.text)
    try:
        saved = policies.put_policy(call.app, call.ask(policies.AccountQuery, body, if_match=draft.version))
    except PolicyConflictError:
        page = _page(call)
        theirs = {"conflict": page["version"], "theirs": page["text"], "began": draft.version}
        return {**page, **_shown(call, draft), **theirs, "their_changes": _since(call, draft.version), "touched": True}
    except PolicyError as error:
        return {**_page(call), **_shown(call, draft), "error": str(error), "touched": True}
    warned = f" {len(saved.warnings)} warnings." if saved.warnings else ""
    return call.redirect_with_notice(
        _page_of(call.path["account"]), f"Saved as version {saved.number}; it is in force now.{warned}"
    )


def _draft(call: PageRequest) -> PolicyDraft:
    """The draft that a form brought, after the button that was pressed."""
    text, version, view = call.field("text").replace("\r\n", "\n"), call.field("version"), call.field("view")
    before = _parsed(call, text) if view == "form" else None
    form = None
    if before is not None:
        form = changed_form(call, before, list(call.app.node.settings.store_urls))
        text = text if form.policy == before else policy_text(form.policy)
    verb, _, wanted = call.field("do").partition(":")
    view = wanted if verb == "view" else view
    return PolicyDraft(text, version, form) if view == "form" and form else _draft_of(call, text, version, view)


def _draft_of(call: PageRequest, text: str, version: str, view: str) -> PolicyDraft:
    if view != "form":
        return PolicyDraft(text, version)
    try:
        policy = policies.parsed(call.path["account"], text.encode("utf-8", "surrogatepass")).policy
    except PolicyError as error:
        return PolicyDraft(text, version, trouble=str(error))
    return PolicyDraft(
        text, version, show_form(policy, call.query.get("find", ""), number_of(call.query.get("offset", "")))
    )


def _shown(call: PageRequest, draft: PolicyDraft) -> dict[str, Any]:
    """What the editor shows of *draft*: its rows or its text, and what in it is not in force."""
    policy = draft.form.policy if draft.form else _parsed(call, draft.text)
    changes = changes_between(policies.in_force(call.app, call.path["account"]), policy) if policy else []
    shown: dict[str, Any] = {"text": draft.text, "version": draft.version, "form": draft.form, "changes": changes}
    if draft.trouble:
        shown["error"] = draft.trouble
    if draft.form:
        configured = call.app.node.settings.store_urls
        own = {*draft.form.policy.spaces, *draft.form.policy.ignored}
        shown["stores"] = [(name, name in configured) for name in store_names(draft.form.policy, configured)]
        others = (name for name in call.app.poller.snapshot.space_names if name not in own and not is_system(name))
        shown["suggested"] = list(islice(others, _SUGGESTED))
    return shown


def _merged(call: PageRequest, draft: PolicyDraft, began: str, theirs: str) -> PolicyDraft | None:
    """The changes of *draft* since the version *began*, put over the text that is in force now."""
    parts = (_version(call, began), _parsed(call, draft.text), _parsed(call, theirs))
    if None in parts:
        return None
    policy = merge_policies(*parts)  # type: ignore[arg-type]
    form = show_form(policy) if draft.form else None
    return PolicyDraft(policy_text(policy), draft.version, form)


def _since(call: PageRequest, began: str) -> Sequence[PolicyChange] | None:
    """What others changed since the version *began*; None where the history does not have that one."""
    before = _version(call, began)
    return changes_between(before, policies.in_force(call.app, call.path["account"])) if before else None


def _version(call: PageRequest, version: str) -> Policy | None:
    """The policy that had this *version*; None where the history does not have it."""
    account = call.path["account"]
    if version == ABSENT:
        return Policy(account)
    found = (data for _, data in history(call.app.node.policies.location, account) if version_of(data) == version)
    data = next(found, None)
    return None if data is None else _parsed(call, data.decode("utf-8", "replace"))


def _parsed(call: PageRequest, text: str) -> Policy | None:
    try:
        return policies.parsed(call.path["account"], text.encode("utf-8", "surrogatepass")).policy
    except PolicyError:
        return None


def _page(call: PageRequest) -> dict[str, Any]:
    account = call.path["account"]
    page: dict[str, Any] = dict.fromkeys(("checked", "conflict", "theirs", "began", "error", "older", "detail"))
    page |= {"account": account, "their_changes": [], "touched": False, "versions": []}
    try:
        detail = policies.policy(call.app, call.ask(policies.AccountQuery))
    except NotFoundError:
        return {**page, "version": ABSENT, "text": policies.empty_policy()}
    versions = policies.policy_versions(call.app, call.ask(policies.AccountQuery)).items
    facts = {"version": detail.version, "text": detail.text, "detail": detail, "versions": versions}
    return {**page, **facts, "error": detail.error}


def _page_of(account: str) -> str:
    return f"/policies/{quote(account, safe='')}"
