"""Reading the policies of all accounts, all or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from millstream.core.clock import Clock
from millstream.mill.errors import PolicyError
from millstream.mill.policies.locations import MAX_BYTES, FolderLocation, PolicyLocation, SpaceLocation
from millstream.mill.policies.policy import (
    Pair,
    Policy,
    PolicyPositions,
    PolicyWarning,
    parse_accounts,
    parse_policy,
    policy_file,
)
from millstream.stores.protocol import Store, StoreError

ACCOUNTS_FILE = "duplication-accounts.json"
REFRESH_SECONDS = 60.0
"""How long a worker goes by the policies that it has read."""

_log = logging.getLogger(__name__)


class Policies(msgspec.Struct, frozen=True):
    """The policies of all accounts, what to warn of in each, and where its parts stand, by account.

    ``missing`` says that there is no list of accounts, and where it should be; it is empty where there is one.
    """

    by_account: Mapping[str, Policy] = {}
    warnings: Mapping[str, list[PolicyWarning]] = {}
    positions: Mapping[str, PolicyPositions] = {}
    missing: str = ""

    @property
    def found(self) -> bool:
        """Whether there is a list of accounts, if an empty one."""
        return not self.missing

    def asks(self, space: str, pair: Pair) -> bool:
        """Whether the policy of any account asks that *space* is copied between the stores of *pair*."""
        return any(pair in policy.lookup(space) for policy in self.by_account.values())

    @property
    def destinations(self) -> frozenset[str]:
        """The stores that any policy has copies written to."""
        return frozenset(pair.destination for policy in self.by_account.values() for pair in policy.pairs)

    def sources(self, space: str) -> frozenset[str]:
        """The stores that are sources of *space* in any account and destinations of it in none."""
        pairs = [pair for policy in self.by_account.values() for pair in policy.lookup(space)]
        return frozenset(pair.source for pair in pairs) - {pair.destination for pair in pairs}

    def copies(self, space: str) -> frozenset[str]:
        """The stores to which any account copies *space*."""
        pairs = [pair for policy in self.by_account.values() for pair in policy.lookup(space)]
        return frozenset(pair.destination for pair in pairs)

    def originals(self, space: str, stores: Iterable[str]) -> frozenset[str]:
        """Those of *stores* that no account copies *space* to, so that nothing may take their items for copies.

        None where no store is a source of *space*, as without policies, or in a circle.
        """
        return frozenset(stores) - self.copies(space) if self.sources(space) else frozenset()

    def copied_from(self, space: str) -> frozenset[str]:
        """The stores from which any account copies *space*, whether it is copied to them or not."""
        pairs = [pair for policy in self.by_account.values() for pair in policy.lookup(space)]
        return frozenset(pair.source for pair in pairs)

    def copies_of(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """The (store, space) to which those of *places* are copied that are sources, whether they are there or not."""
        originals = {space for store, space in places if store in self.sources(space)}
        return {(store, space) for space in originals for store in self.copies(space)}


class PolicyRepository:
    """Reads the policy files at *place*. Use :meth:`in_folder` or :meth:`in_store`."""

    def __init__(self, place: PolicyLocation) -> None:
        self.place = place

    @classmethod
    def in_folder(cls, folder: Path) -> PolicyRepository:
        """The policy files in a local *folder*."""
        return cls(FolderLocation(folder))

    @classmethod
    def in_store(cls, store: Store, space: str) -> PolicyRepository:
        """The policy files in *space* of *store*."""
        return cls(SpaceLocation(store, space))

    def load(self) -> Policies:
        """Every policy of the accounts list, all or none; no accounts list means no policies.

        Raises :class:`PolicyError` that names the file, line and column. So one broken file never leaves a part of
        the policies in force.
        """
        listed = self._text(ACCOUNTS_FILE)
        if listed is None:
            return Policies(missing=f"there is no policy, because {self.place.where} has no {ACCOUNTS_FILE}")
        policies, warnings, positions = {}, {}, {}
        for account in parse_accounts(listed, ACCOUNTS_FILE):
            text = self._policy_text(account)
            policies[account], warnings[account], positions[account] = parse_policy(text, account)
        return Policies(policies, warnings, positions)

    def _policy_text(self, account: str) -> str:
        check_account(account)
        name = policy_file(account)
        text = self._text(name)
        if text is None:
            raise PolicyError(
                f"{ACCOUNTS_FILE} lists account {account!r}, but {self.place.where} has no {name}: add the "
                "policy, or remove the account from the list"
            )
        return text

    def _text(self, name: str) -> str | None:
        data = self.place.read(name)
        if data is None:
            return None
        if len(data) > MAX_BYTES:
            what = "accounts" if name == ACCOUNTS_FILE else "rules"
            raise PolicyError(
                f"{name} in {self.place.where} is larger than the limit of {MAX_BYTES:,} bytes: remove {what}"
            )
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PolicyError(
                f"{name} in {self.place.where} is not UTF-8 text ({error}): save the file as UTF-8"
            ) from error


class CachedPolicies:
    """The policies of *repository*, read again when they are older than *seconds*. Thread-safe.

    What cannot be read then keeps the ones that are in force, and is logged; only the first reading may fail. So does a
    list of accounts that is gone, as with a disk that is not mounted: an empty list puts all policies out of force.
    """

    def __init__(self, repository: PolicyRepository, clock: Clock, seconds: float = REFRESH_SECONDS) -> None:
        self._repository, self._clock, self._seconds = repository, clock, seconds
        self._lock = threading.Lock()
        self._policies: Policies | None = None
        self._read_at = 0.0

    def __call__(self) -> Policies:
        """The policies as they were *seconds* ago or later; while another thread reads them again, those of before.

        Raises :class:`PolicyError` where none were read so far.
        """
        before = self._policies
        if before is not None and self._clock.monotonic() - self._read_at < self._seconds:
            return before
        if not self._lock.acquire(blocking=before is None):  # a store that hangs holds up one thread only
            assert before is not None
            return before
        try:
            if self._policies is None or self._clock.monotonic() - self._read_at >= self._seconds:
                self._policies = self._repository.load() if self._policies is None else self._read_again(self._policies)
                self._read_at = self._clock.monotonic()
            return self._policies
        finally:
            self._lock.release()

    def _read_again(self, before: Policies) -> Policies:
        try:
            now = self._repository.load()
        except (PolicyError, StoreError) as error:
            reason = str(error)
        else:
            if now.found or not before.found:
                return now
            reason = now.missing
        _log.warning("the previous duplication policies stay in force: %s", reason)
        return before


def check_account(account: str) -> None:
    """Raise :class:`PolicyError` where *account* cannot be a part of a file's name."""
    if not account or any(sign in account for sign in "/\\\0") or account.startswith("."):
        raise PolicyError(
            f"invalid account name {account!r}: it must not be empty, contain '/', '\\' or a NUL character, or start "
            "with a dot"
        )
