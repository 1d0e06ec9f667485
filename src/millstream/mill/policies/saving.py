"""Saving policies: checked before they are in force, never over a change that was not seen, every version kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.errors import BusyError
from millstream.mill.errors import PolicyError
from millstream.mill.policies.changes import change_lines, changes_between
from millstream.mill.policies.locations import MAX_BYTES, PolicyLocation
from millstream.mill.policies.policy import (
    ParsedPolicy,
    Policy,
    PolicyWarning,
    parse_accounts,
    parse_policy,
    policy_file,
)
from millstream.mill.policies.repository import ACCOUNTS_FILE, check_account

HISTORY = "history"
"""The folder beside the policy files with every version that was ever in force, one folder a file, numbered from 1."""

ABSENT = "none"
"""The version of a policy that does not exist."""


class PolicyConflictError(PolicyError, BusyError):
    """Another user changed the policy meanwhile."""

    exit_code = BusyError.exit_code


class PolicyVersion(msgspec.Struct, frozen=True):
    """A policy that was saved: its version now, its number in the history, and what its text gives cause to warn of.

    ``changes`` says in words what it changed, or that nothing is known of the policy before it.
    """

    account: str
    version: str
    number: int
    warnings: tuple[PolicyWarning, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """The fields of the operator audit log."""
        return {"version": self.version, "number": self.number, "changes": list(self.changes)}


def version_of(data: bytes | None) -> str:
    """The version of a policy file with these bytes."""
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()[:16]


def read_policy(data: bytes, account: str) -> ParsedPolicy:
    """The policy of *account* in *data*, as :func:`parse_policy`. Raises :class:`PolicyError`."""
    if len(data) > MAX_BYTES:
        raise PolicyError(f"the policy of {account} is larger than the limit of {MAX_BYTES:,} bytes: remove rules")
    try:
        return parse_policy(data.decode("utf-8-sig"), account)
    except UnicodeDecodeError as error:
        raise PolicyError(f"the policy of {account} is not UTF-8 text ({error}): save the policy as UTF-8") from error


def save_policy(place: PolicyLocation, account: str, data: bytes, *, if_match: str | None = None) -> PolicyVersion:
    """Put the policy *data* of *account* in force, and the account on the list of accounts.

    Raises :class:`PolicyError` with line and column for what is not a policy, :class:`PolicyConflictError` where the
    version now is not *if_match*: then nothing was changed.
    """
    check_account(account)
    name = policy_file(account)
    proposed = read_policy(data, account)
    with place.saving():
        current = place.read(name)
        _check_version(place, name, current, if_match)
        number = _keep(place, name, current, data)
        place.write(name, data)
        _list_account(place, account)
    changes = tuple(_changes(account, current, proposed.policy))
    return PolicyVersion(account, version_of(data), number, tuple(proposed.warnings), changes)


def withdraw_policy(place: PolicyLocation, account: str, *, if_match: str | None = None) -> None:
    """Take *account* off the list of accounts, so that nothing is copied by its policy any more.

    The file and its history stay: saving any version puts the account on the list again. Raises
    :class:`PolicyConflictError` as :func:`save_policy`, :class:`PolicyError` where the account is not on the list.
    """
    check_account(account)
    name = policy_file(account)
    with place.saving():
        current = place.read(name)
        _check_version(place, name, current, if_match)
        accounts = _listed(place)
        if account not in accounts:
            raise PolicyError(
                f"no policy of account {account!r} is in force: {ACCOUNTS_FILE} in {place.where} does not list it; "
                "check the account"
            )
        _write_accounts(place, [one for one in accounts if one != account])


def saved_accounts(place: PolicyLocation) -> Sequence[str]:
    """Every account of which a policy was ever saved, in force or not, by name."""
    ending = policy_file("")
    names = {name.partition("/")[0] for name in place.names(HISTORY)}
    return sorted(name.removesuffix(ending) for name in names if name.endswith(ending))


def history(place: PolicyLocation, account: str) -> Sequence[tuple[int, bytes]]:
    """Every version of the policy of *account* that was saved, the oldest first."""
    folder = f"{HISTORY}/{policy_file(account)}"
    found = ((int(name), place.read(f"{folder}/{name}")) for name in place.names(folder) if name.isdigit())
    return [(number, data) for number, data in found if data is not None]


def _changes(account: str, before: bytes | None, after: Policy) -> Sequence[str]:
    """In words, what *after* changes of the policy *before*."""
    try:
        old = Policy(account) if before is None else read_policy(before, account).policy
    except PolicyError:
        return ["the previous policy could not be read"]
    return change_lines(changes_between(old, after)) or ["the same pairs and spaces, written differently"]


def _keep(place: PolicyLocation, name: str, current: bytes | None, data: bytes) -> int:
    """Put *data* into the history, and before it a version that was edited by hand; the number of *data* there."""
    folder = f"{HISTORY}/{name}"
    names = [one for one in place.names(folder) if one.isdigit()]
    last = place.read(f"{folder}/{names[-1]}") if names else None
    number = int(names[-1]) if names else 0
    for text in [current, data] if current is not None and current != last else [data]:
        number += 1
        if not place.create(f"{folder}/{number:08d}", text):
            raise PolicyConflictError(f"another person is saving {name} in {place.where} now; try again")
    return number


def _check_version(place: PolicyLocation, name: str, current: bytes | None, if_match: str | None) -> None:
    if if_match is not None and if_match != version_of(current):
        raise PolicyConflictError(
            f"{name} in {place.where} is at version {version_of(current)}, not {if_match}, because "
            "another version was saved meanwhile: read the policy with `millstream mill policy show`, and edit "
            "that version"
        )


def _list_account(place: PolicyLocation, account: str) -> None:
    accounts = _listed(place)
    if account not in accounts:
        _write_accounts(place, [*accounts, account])


def _listed(place: PolicyLocation) -> Sequence[str]:
    listed = place.read(ACCOUNTS_FILE)
    return parse_accounts(listed.decode("utf-8-sig"), ACCOUNTS_FILE) if listed is not None else ()


def _write_accounts(place: PolicyLocation, accounts: Sequence[str]) -> None:
    place.write(ACCOUNTS_FILE, msgspec.json.format(msgspec.json.encode(accounts)) + b"\n")
