"""Random histories of identifiers, with odd contents, replays and operations of strangers, as batches of requests."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millstream.anchoring.sidetree import (
    PrivateKey,
    create_request,
    deactivate_request,
    recover_request,
    update_request,
)
from millstream.anchoring.sidetree.encoding import hash_of
from millstream.testing.dids import secret_key

Patch = dict[str, Any]
Odd = Callable[[random.Random], Any]

PURPOSES = ("authentication", "assertionMethod", "keyAgreement", "capabilityInvocation", "capabilityDelegation")
URIS = (
    "https://example.org/", "did:example:123#key-1", "urn:isbn:0451450523",
    "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "mailto:a@example.org", "http://[::1]:80/", "tel:+1-816-555-1212", "https://example.org/%C3%A9?q=1#f", "a:", "file:///x",
)  # fmt: skip
LOOSE_URIS = (
    "", "//example.org", "example.org/x", "not a uri", "https://é.org/", "https://example.org/{id}|^\"\\", "https://e.org/#a#b",
    "https://e.org/%zz", "😀", "a\x7fb",
)  # fmt: skip
WORDS = ("plain", "é", "ﬀ", "中文", "😀", 'a"b\\c', "line\nbreak\ttab", "\x00\x1f", "\u2028", "", "\x7f", "\ufeff")
NUMBERS = (0, 1, -1, 1.5, 0.1, -0.25, 2**53 - 1, -(2**53) + 1, 100000, 1e20, 123456789.125, 1e-6)
LOOSE_NUMBERS = (2**53 + 1, 2**63, 10**20)


class Histories:
    """Identifiers whose owners act at random; *loose* contents are such as only the reference takes from clients."""

    def __init__(self, seed: int, *, loose: bool) -> None:
        self.random = random.Random(seed)
        self._loose = loose
        self._owners: list[_Owner] = []
        self._numbers = itertools.count()
        self._seed = seed

    @property
    def suffixes(self) -> Sequence[str]:
        return [owner.suffix for owner in self._owners]

    @property
    def creates(self) -> Sequence[bytes]:
        """The create request of each identifier."""
        return [owner.requests[0] for owner in self._owners]

    def batch(self, most: int) -> Sequence[bytes]:
        """Requests for one batch: at most *most*, one for an identifier; not all are valid."""
        size = self.random.randint(1, most)
        requests = [self._create() for _ in range(self.random.randint(0, size))]
        known = self._owners[: len(self._owners) - len(requests)]
        chosen = self.random.sample(known, min(len(known), size - len(requests)))
        return requests + [self._act(owner) for owner in chosen]

    def _create(self) -> bytes:
        owner = _Owner(f"{self._seed}/{next(self._numbers)}")
        kind = self.random.choice(["", "", "a", "abcd", "_-"])
        keys = {"update_key": owner.update_key.public, "recovery_key": owner.recovery_key.public}
        request = create_request(self._patches(), kind=kind, **keys)
        owner.suffix = hash_of(json.loads(request)["suffixData"])
        owner.requests.append(request)
        self._owners.append(owner)
        return request

    def _act(self, owner: _Owner) -> bytes:
        kind = self.random.choices(
            ["update", "recover", "deactivate", "replay", "stranger", "stale"], [60, 12, 3, 10, 8, 7]
        )[0]
        if kind == "replay":
            return self.random.choice(owner.requests)
        if kind == "stranger":
            other = secret_key(f"stranger/{next(self._numbers)}")
            return update_request(owner.suffix, self._patches(), key=other, next_update_key=other.public)
        if kind == "stale" and owner.used:
            next_key = secret_key(f"stale/{next(self._numbers)}").public
            return update_request(
                owner.suffix, self._patches(), key=self.random.choice(owner.used), next_update_key=next_key
            )
        request = owner.act("update" if kind == "stale" else kind, self._patches())
        owner.requests.append(request)
        return request

    def _patches(self) -> list[Patch]:
        """Patches that fit into a delta."""
        while True:
            patches = [self._patch() for _ in range(self.random.choice([0, 1, 1, 1, 2, 3]))]
            if len(json.dumps(patches, ensure_ascii=False).encode("utf-8", "replace")) < 900:
                return patches

    def _patch(self) -> Patch:
        pick = self.random
        kind = pick.choice(["add-services", "add-public-keys", "remove-services", "remove-public-keys", "replace"])
        if kind.startswith("remove"):
            return {"action": kind, "ids": [self._id() for _ in range(pick.randint(0, 3))]}
        services = self._several(self._service)
        keys = self._several(self._key)
        if kind == "replace":
            members = {"services": services, "publicKeys": keys}
            return {"action": kind, "document": {name: members[name] for name in members if pick.random() < 0.7}}
        return {"action": kind, **({"services": services} if kind == "add-services" else {"publicKeys": keys})}

    def _several(self, make: Callable[[], Patch]) -> list[Patch]:
        items = [make() for _ in range(self.random.choice([0, 1, 1, 2]))]
        return list({item["id"]: item for item in items}.values())

    def _id(self) -> str:
        return self.random.choice(["a", "b", "c", "_", "-", "Z9", "x" * 50])

    def _service(self) -> Patch:
        pick = self.random
        kind = pick.choice(["T", "", "é" * 30, "😀" * 15, "x" * 30, "LinkedDomains"])
        endpoint = pick.choice(URIS) if pick.random() < 0.5 else self._object(2)
        if self._loose and pick.random() < 0.4:
            endpoint = pick.choice([None, *LOOSE_URIS])
        return {"id": self._id(), "type": kind, "serviceEndpoint": endpoint}

    def _key(self) -> Patch:
        pick = self.random
        jwk = {"kty": "EC", "crv": "secp256k1", "x": "a", "y": "b"} if pick.random() < 0.5 else self._object(1)
        if self._loose and pick.random() < 0.2:
            jwk = None  # type: ignore[assignment]
        purposes = pick.sample(PURPOSES, pick.randint(0, 5))
        more = {"purposes": purposes} if pick.random() < 0.8 else {}
        return {"id": self._id(), "type": pick.choice(["JsonWebKey2020", "", "é"]), "publicKeyJwk": jwk, **more}

    def _object(self, depth: int) -> Patch:
        names = self.random.sample(WORDS, self.random.randint(0, 3))
        return {name: self._value(depth) for name in names}

    def _value(self, depth: int) -> Any:
        pick = self.random
        numbers = NUMBERS + (LOOSE_NUMBERS if self._loose else ())
        plain: Sequence[Any] = [None, True, False, pick.choice(WORDS), pick.choice(numbers), [], {}]
        if depth and pick.random() < 0.3:
            return pick.choice([self._object(depth - 1), [self._value(depth - 1) for _ in range(pick.randint(0, 3))]])
        return pick.choice(plain)


class _Owner:
    def __init__(self, name: str) -> None:
        self._name = name
        self._turns = itertools.count()
        self.update_key, self.recovery_key = self._key(), self._key()
        self.suffix = ""
        self.requests: list[bytes] = []
        self.used: list[PrivateKey] = []

    def act(self, kind: str, patches: Sequence[Patch]) -> bytes:
        if kind == "deactivate":
            return deactivate_request(self.suffix, key=self.recovery_key)
        key, self.update_key = self.update_key, self._key()
        self.used.append(key)
        if kind == "update":
            return update_request(self.suffix, patches, key=key, next_update_key=self.update_key.public)
        recovery, self.recovery_key = self.recovery_key, self._key()
        keys = {"next_recovery_key": self.recovery_key.public, "next_update_key": self.update_key.public}
        return recover_request(self.suffix, patches, key=recovery, **keys)

    def _key(self) -> PrivateKey:
        return secret_key(f"{self._name}/{next(self._turns)}")


def batches(histories: Histories, count: int, most: int) -> Iterator[Sequence[bytes]]:
    """*count* batches of requests."""
    for _ in range(count):
        yield histories.batch(most)
