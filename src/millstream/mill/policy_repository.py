"""Where policy files lie: a folder, or a space of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from millstream.mill.errors import PolicyError
from millstream.mill.policy import Policy, Warned, parse_accounts, parse_policy, policy_file
from millstream.stores.protocol import ItemNotFoundError, SpaceNotFoundError, Store

ACCOUNTS_FILE = "duplication-accounts.json"
MAX_BYTES = 16 * 1024 * 1024
"""A larger file is no policy."""

_ReadFile = Callable[[str], bytes | None]


class Policies(msgspec.Struct, frozen=True):
    """The policies of all accounts, and what to warn of in each, by account."""

    by_account: Mapping[str, Policy] = {}
    warnings: Mapping[str, list[Warned]] = {}

    def sources(self, space: str) -> frozenset[str]:
        """The stores that are sources of *space* in any account and destinations of it in none."""
        pairs = [pair for policy in self.by_account.values() for pair in policy.lookup(space)]
        return frozenset(pair.source for pair in pairs) - {pair.destination for pair in pairs}


class PolicyRepository:
    """Reads policy files. Use :meth:`in_folder` or :meth:`in_store`."""

    def __init__(self, read: _ReadFile, where: str) -> None:
        self._read = read
        self._where = where

    @classmethod
    def in_folder(cls, folder: Path) -> PolicyRepository:
        """The policy files in a local *folder*."""

        def read(name: str) -> bytes | None:
            try:
                with (folder / name).open("rb") as file:
                    return file.read(MAX_BYTES + 1)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise PolicyError(f"{folder / name} cannot be read: {error}") from error

        return cls(read, str(folder))

    @classmethod
    def in_store(cls, store: Store, space: str) -> PolicyRepository:
        """The policy files in *space* of *store*."""

        def read(name: str) -> bytes | None:
            try:
                with store.open(space, name) as file:
                    return file.read(MAX_BYTES + 1)
            except (ItemNotFoundError, SpaceNotFoundError):
                return None

        return cls(read, f"space {space!r} of {store.url}")

    def load(self) -> Policies:
        """Every policy of the accounts list, all or none; no accounts list means no policies.

        Raises :class:`PolicyError` that names the file, line and column. So one broken file never leaves a part of
        the policies in force.
        """
        listed = self._text(ACCOUNTS_FILE)
        if listed is None:
            return Policies()
        policies, warnings = {}, {}
        for account in parse_accounts(listed, ACCOUNTS_FILE):
            policies[account], warnings[account] = self._load(account)
        return Policies(policies, warnings)

    def _load(self, account: str) -> tuple[Policy, list[Warned]]:
        name = policy_file(account)
        if any(sign in account for sign in "/\\\0") or account.startswith("."):
            raise PolicyError(f"{ACCOUNTS_FILE}: {account!r} is no name of an account")
        text = self._text(name)
        if text is None:
            raise PolicyError(f"{ACCOUNTS_FILE} lists {account!r}, and there is no {name} in {self._where}")
        return parse_policy(text, account, name)

    def _text(self, name: str) -> str | None:
        data = self._read(name)
        if data is None:
            return None
        if len(data) > MAX_BYTES:
            raise PolicyError(f"{name} in {self._where} is larger than {MAX_BYTES:,} bytes: no policy is")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PolicyError(f"{name} in {self._where} is not UTF-8 text: {error}") from error
