"""People with DIDs for tests and benchmarks: keys that are the same in every run, and operations that follow them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from millstream.anchoring.sidetree import (
    SIDETREE,
    Operation,
    PrivateKey,
    Profile,
    create_request,
    deactivate_request,
    parse_request,
    recover_request,
    update_request,
)

Patches = Sequence[dict[str, Any]]


def secret_key(name: str, curve: str = "secp256k1") -> PrivateKey:
    """The key that belongs to *name*; everybody can know it."""
    return PrivateKey.from_secret(curve, hashlib.sha256(name.encode()).digest())


def add_service(name: str) -> dict[str, Any]:
    """A patch that adds the service *name*."""
    service = {"id": name, "type": "page", "serviceEndpoint": f"https://example.org/{name}"}
    return {"action": "add-services", "services": [service]}


class DidOwner:
    """Somebody who makes a DID and then changes it; every operation is valid after those made before it."""

    def __init__(self, name: str, curve: str = "secp256k1", profile: Profile = SIDETREE) -> None:
        self._name, self._curve, self._profile, self._turn = name, curve, profile, 0
        self.update_key, self.recovery_key = self._next_key("update"), self._next_key("recovery")
        request = create_request(
            [add_service("home")], update_key=self.update_key.public, recovery_key=self.recovery_key.public
        )
        self.create = parse_request(request, self._profile)
        self.suffix = self.create.suffix

    def update(self, patches: Patches = ()) -> Operation:
        """The next update; without *patches* it adds a service of its own."""
        key, self.update_key = self.update_key, self._next_key("update")
        patches = patches or [add_service(f"s{self._turn}")]
        request = update_request(self.suffix, patches, key=key, next_update_key=self.update_key.public)
        return parse_request(request, self._profile)

    def recover(self, patches: Patches = ()) -> Operation:
        """A recovery under new keys."""
        key = self.recovery_key
        self.recovery_key, self.update_key = self._next_key("recovery"), self._next_key("update")
        request = recover_request(
            self.suffix,
            patches or [add_service(f"r{self._turn}")],
            key=key,
            next_recovery_key=self.recovery_key.public,
            next_update_key=self.update_key.public,
        )
        return parse_request(request, self._profile)

    def deactivate(self) -> Operation:
        """The end of the DID."""
        return parse_request(deactivate_request(self.suffix, key=self.recovery_key), self._profile)

    def _next_key(self, kind: str) -> PrivateKey:
        self._turn += 1
        return secret_key(f"{self._name}/{kind}/{self._turn}", self._curve)
