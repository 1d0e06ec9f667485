"""What our chains say an operation did, against the reference implementation, which reads the ledger step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from reference.implementation import Files, ReferenceImplementation

from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    Operation,
    OperationType,
    chain_of,
    resolution,
    write_batch,
)
from millstream.anchoring.sidetree.did import Did
from millstream.anchoring.sidetree.encoding import commitment_to, hash_of
from millstream.anchoring.sidetree.signatures import parse_jws, sign
from millstream.testing.dids import DidOwner, add_service, secret_key
from suite.sizes import sized

PEOPLE = sized(quick=8, ci=40, long=400)
KEYS = [secret_key(f"returning {n}") for n in range(4)]


def history(pick: random.Random, name: str) -> Sequence[Operation]:
    """Operations on one DID as a ledger may hold them: with replays, foreign and used keys, gaps and reorderings."""
    owner, twin, stranger = DidOwner(name), DidOwner(name), DidOwner(f"stranger of {name}")
    stranger.suffix = owner.suffix
    made = [owner.create]
    for _ in range(pick.randint(1, 8)):
        kind = pick.choice(["update", "update", "update", "recover", "deactivate", "replay", "used key", "stranger"])
        if kind == "replay":
            made.append(pick.choice(made))
        elif kind == "used key":
            made.append(twin.update([add_service("twin")]))
        elif kind == "stranger":
            made.append(pick.choice([stranger.update, stranger.recover, stranger.deactivate])())
        else:
            made.append(getattr(owner, kind)())
    if pick.random() < 0.2:
        made.remove(pick.choice(made))
    if pick.random() < 0.4:
        first, second = pick.randrange(max(len(made), 1)), pick.randrange(max(len(made), 1))
        made[first], made[second] = made[second], made[first]
    return made


def steps(reference: ReferenceImplementation, suffix: str, operations: Sequence[Operation]) -> list[Any]:
    """What the DID resolves to before the first and after each of *operations*, anchored one by one."""
    reference.forget()
    found: list[Any] = [None]
    for number, operation in enumerate(operations, 1):
        batch = write_batch([operation], SIDETREE)
        assert reference.read({number: Files(batch.anchor, [file.data for file in batch.files])}) == [True]
        found += reference.resolve([f"did:sidetree:{suffix}"])
    return found


@pytest.mark.parametrize("seed", range(2))
def test_every_effect_is_confirmed_by_the_reference(reference: ReferenceImplementation, seed: int) -> None:
    """An operation that is applied at its anchor changes the DID there; one that never is changes nothing anywhere."""
    pick, applied, without = random.Random(seed), 0, 0
    for name in range(PEOPLE):
        operations = history(pick, f"{seed}/{name}")
        suffix = DidOwner(f"{seed}/{name}").suffix
        ledger = [AnchoredOperation(number, 0, operation) for number, operation in enumerate(operations, 1)]
        chain = chain_of(ledger)
        states = steps(reference, suffix, operations)
        for place, anchored in enumerate(ledger):
            at_its_anchor = chain_of(ledger[: place + 1]).effect(anchored).applied
            assert at_its_anchor == (states[place] != states[place + 1]), (name, place)
        useful = [each.operation for each in ledger if chain.effect(each).applied]
        applied, without = applied + len(useful), without + len(ledger) - len(useful)
        assert steps(reference, suffix, useful)[-1] == states[-1], "those without an effect can be left out"
    assert applied > PEOPLE and without > PEOPLE / 2


def some_delta(pick: random.Random, name: str) -> dict[str, Any]:
    return {"patches": [add_service(name)], "updateCommitment": commitment_to(pick.choice(KEYS).public)}


def create_with(pick: random.Random, kind: str) -> Operation:
    delta = some_delta(pick, "first")
    signed_hash = hash_of(delta if pick.random() < 0.9 else "another delta")
    commitment = commitment_to(pick.choice(KEYS).public)
    data = {"deltaHash": signed_hash, "recoveryCommitment": commitment, "type": kind}
    return Operation(OperationType.CREATE, hash_of(data), delta, data)


def operation_with(pick: random.Random, suffix: str, name: str) -> Operation:
    """An operation that reveals any of the keys and commits to any, also to those that were revealed."""
    kind = pick.choices([OperationType.UPDATE, OperationType.RECOVER, OperationType.DEACTIVATE], [60, 35, 5])[0]
    key, delta = pick.choice(KEYS), None if kind == OperationType.DEACTIVATE else some_delta(pick, name)
    signed_hash = hash_of(delta if pick.random() < 0.9 else "another delta")
    payload = {
        OperationType.UPDATE: {"updateKey": key.public, "deltaHash": signed_hash},
        OperationType.RECOVER: {
            "recoveryKey": key.public,
            "deltaHash": signed_hash,
            "recoveryCommitment": commitment_to(pick.choice(KEYS).public),
        },
        OperationType.DEACTIVATE: {"recoveryKey": key.public, "didSuffix": suffix},
    }[kind]
    signed = parse_jws(sign(payload, key if pick.random() < 0.93 else pick.choice(KEYS)), SIDETREE)
    return Operation(kind, suffix, delta, reveal_value=hash_of(key.public), signed=signed)


def test_commitments_that_return_are_followed_as_by_the_reference(reference: ReferenceImplementation) -> None:
    """Keys are used again, for updates and for recovery, and chains could run in circles."""
    pick, resolved = random.Random(0), 0
    for name in range(PEOPLE):
        create = create_with(pick, f"{name:04x}")
        operations = [operation_with(pick, create.suffix, f"n{n}") for n in range(pick.randint(1, 13))]
        operations.insert(pick.choice([0, 0, 0, len(operations) // 2]), create)
        did = Did(f"did:sidetree:{create.suffix}", "sidetree", create.suffix)
        ledger = [AnchoredOperation(number, 0, operation) for number, operation in enumerate(operations, 1)]
        ours = [resolution(did, chain_of(ledger[:end]).state) for end in range(len(ledger) + 1)]
        assert ours == steps(reference, create.suffix, operations), name
        resolved += sum(answer is not None for answer in ours)
    assert resolved > PEOPLE * 3
