"""Operations without an effect: refused at the door, decided at the cut, and told as such when they were anchored."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring import MemoryLedger
from millstream.anchoring.errors import LedgerError
from millstream.anchoring.registry import DidRegistry, OperationState, RegistryDatabase
from millstream.anchoring.registry.chain_cache import ChainCache
from millstream.anchoring.registry.operation_id import operation_id
from millstream.anchoring.registry.operation_intake import check_request
from millstream.anchoring.registry.registry_replay import replay_registry
from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    Operation,
    OperationType,
    apply,
    chain_of,
    parse_request,
    resolve,
    update_request,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import canonical, decode, encode
from millstream.core.canonical import canonical_json
from millstream.core.clock import VirtualClock
from millstream.testing.dids import DidOwner, add_service
from suite.sizes import examples

Submit = Callable[..., list[str]]


def anchor(registry: DidRegistry) -> None:
    registry.queue.claim(10_000)
    registry.writer.cut(force=True)


def stranger_on(person: DidOwner, name: str = "stranger") -> DidOwner:
    """Somebody with keys of their own who writes of the DID of *person*."""
    stranger = DidOwner(name)
    stranger.suffix = person.suffix
    return stranger


def codes(registry: DidRegistry, *operations: Operation) -> list[str | None]:
    requests = [canonical_json(operation.request) for operation in operations]
    return [outcome.code for outcome in registry.acceptance.submit_many(requests)]


def test_what_a_stranger_signs_is_refused_and_the_owner_goes_on(fleet: Any, submit: Submit) -> None:
    registry, ada = fleet.instance(), DidOwner("ada")
    stranger = stranger_on(ada)
    submit(registry, ada.create)
    foreign = [stranger.update() for _ in range(20)] + [stranger.recover(), stranger.deactivate()]
    assert set(codes(registry, *foreign)) == {"not_applicable"}, "while the create is on its way"
    anchor(registry)
    assert set(codes(registry, *foreign)) == {"not_applicable"}, "when it was observed"
    assert codes(registry, ada.update()) == [None]
    anchor(registry)
    assert (len(list(fleet.ledger.entries())), fleet.counts) == (2, {"observed": 2})


def test_a_chain_behind_an_operation_that_is_under_way_is_taken(fleet: Any, submit: Submit) -> None:
    registry, ada = fleet.instance(), DidOwner("ada")
    chain = [ada.create, ada.update(), ada.update(), ada.recover(), ada.update(), ada.deactivate()]
    assert len(submit(registry, *chain[:3])) == 3
    assert [code for operation in chain[3:] for code in codes(registry, operation)] == [None] * 3
    for _ in chain:
        anchor(registry)
    effects = [status.effect for status in registry.statuses_of(ada.suffix)]
    assert effects == ["applied"] * 6
    assert codes(registry, ada.update()) == ["not_applicable"], "the end is final"


def test_of_two_operations_under_one_key_the_second_is_rejected_at_the_cut(fleet: Any, submit: Submit) -> None:
    registry, ada = fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    twin = DidOwner("ada")
    first, second = ada.update(), twin.update([add_service("other")])
    ids = submit(registry, first, second)
    anchor(registry)
    anchor(registry)
    statuses = [registry.status(name) for name in ids]
    assert [status and status.state for status in statuses] == [OperationState.OBSERVED, OperationState.REJECTED]
    assert statuses[1] is not None and statuses[1].reason == "no effect: the key of the operation was used before"
    assert len(list(fleet.ledger.entries())) == 2


def test_a_did_is_created_once(sqlite_fleet: Any, submit: Submit) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    (name,) = submit(registry, ada.create)
    anchor(registry)
    assert submit(registry, ada.create) == [name], "what was taken once is not refused when it is sent again"
    sqlite_fleet.clock.advance(2 * 24 * 3600)
    registry.store.expire()
    (name,) = submit(registry, ada.create)
    anchor(registry)
    status = registry.status(name)
    assert status is not None and (status.state, status.reason) == ("rejected", "no effect: the DID already exists")
    assert len(list(sqlite_fleet.ledger.entries())) == 1


def test_no_more_than_so_many_operations_wait_for_one_did(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"max_open_per_did": 3}
    registry, ada, bob = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("bob")
    assert codes(registry, ada.create, ada.update(), ada.update(), ada.update(), bob.create) == [
        None, None, None, "too_many_open", None,
    ]  # fmt: skip


class Elsewhere:
    """Another registry, with a database of its own, that writes to the same ledger and the same files."""

    def __init__(self, fleet: Any, folder: Path) -> None:
        self.engine = sa.create_engine(f"sqlite:///{folder / 'elsewhere.db'}")
        self.registry = DidRegistry(
            RegistryDatabase(self.engine, fleet.clock), fleet.cas, fleet.ledger, instance="elsewhere"
        )


@pytest.fixture
def elsewhere(sqlite_fleet: Any, tmp_path: Path) -> Any:
    other = Elsewhere(sqlite_fleet, tmp_path)
    yield other.registry
    other.engine.dispose()


def test_what_may_follow_somebody_elses_anchor_is_held_and_decided_at_the_cut(
    sqlite_fleet: Any, submit: Submit, elsewhere: DidRegistry
) -> None:
    here, ada, mallory = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("mallory")
    submit(elsewhere, ada.create)
    anchor(elsewhere)
    submit(elsewhere, ada.update())
    anchor(elsewhere)
    mallory.suffix = ada.suffix
    held = submit(here, *[mallory.update() for _ in range(8)])
    assert len(held) == 5, "some of what nobody knows here is held, while the ledger is ahead"
    assert submit(here, ada.update()) == [], "the owner asks again when that was decided"
    anchor(here)
    assert here.history.position()[0] == 2, "it read the ledger to its end before it decided"
    assert {here.store.status(name).state for name in held} == {OperationState.REJECTED}  # type: ignore[union-attr]
    ada_again = DidOwner("ada")
    ada_again.update(), ada_again.update()
    (name,) = submit(here, ada_again.update()) or [""]
    anchor(here)
    status = here.status(name) if name else None
    assert status is None or status.effect == "applied"


def test_the_owner_who_comes_first_is_held_and_anchored(
    sqlite_fleet: Any, submit: Submit, elsewhere: DidRegistry
) -> None:
    here, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(elsewhere, ada.create, ada.update())
    for _ in range(2):
        anchor(elsewhere)
    (name,) = submit(here, ada.update())
    anchor(here)
    status = here.status(name)
    assert status is not None and (status.state, status.effect) == (OperationState.OBSERVED, "applied")


def test_an_idle_registry_reads_what_others_anchor(sqlite_fleet: Any, submit: Submit, elsewhere: DidRegistry) -> None:
    here, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(elsewhere, ada.create)
    anchor(elsewhere)
    here.work_once()
    assert here.history.state(ada.suffix) is not None


def respelled(operation: Operation) -> list[Operation]:
    """*operation* with other spellings of its signature: the other S, and other bits behind the end of its text."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    assert operation.signed is not None
    message, _, signature = operation.signed.text.rpartition(".")
    raw = decode(signature)
    high = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".index(signature[-1])
    tail = signature[:-1] + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[last ^ 1]
    texts = [f"{message}.{encode(high)}", f"{message}.{tail}"]
    return [parse_request(canonical({**operation.request, "signedData": text}), SIDETREE) for text in texts]


def test_another_spelling_of_the_same_signature_is_the_same_operation(fleet: Any, submit: Submit) -> None:
    registry, ada = fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    update = ada.update()
    variants = [update, *respelled(update)]
    assert len({operation_id(operation, canonical(operation.request)) for operation in variants}) == 1
    assert len({canonical(operation.request) for operation in variants}) == 3
    assert len(set(submit(registry, *variants))) == 1
    anchor(registry)
    assert fleet.counts == {"observed": 2}
    assert len(set(submit(registry, *variants))) == 1, "nor is it another one when it was anchored"


def test_an_operation_of_an_earlier_release_is_found_in_its_anchor(fleet: Any, submit: Submit) -> None:
    """Its id was the hash of the request with the signature as it was spelled."""
    registry, ada = fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    (spelled, _) = respelled(ada.update())
    submission = check_request(canonical_json(spelled.request), registry.versions.latest)
    from millstream.anchoring.sidetree.encoding import hash_bytes

    old = msgspec.structs.replace(submission, id=hash_bytes(submission.request))
    registry.store.accept([old])
    anchor(registry)
    status = registry.status(old.id)
    assert status is not None and (status.state, status.effect) == (OperationState.OBSERVED, "applied")


def test_an_observed_operation_says_its_effect_and_why_it_has_none(sqlite_fleet: Any, submit: Submit) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    stranger, unknown = stranger_on(ada), DidOwner("unknown")
    submit(registry, ada.create)
    anchor(registry)
    update = ada.update()
    ids = submit(registry, update)
    odd = [stranger.update(), unknown.update(), stranger_on(ada, "other").deactivate()]
    submissions = [check_request(canonical_json(each.request), registry.versions.latest) for each in odd]
    registry.store.accept(submissions)
    for operation in [update, *odd]:  # as a registry without a judge anchors them
        batch = write_batch([operation], SIDETREE)
        for file in batch.files:
            sqlite_fleet.files.put(file.data)
        sqlite_fleet.ledger.append(batch.anchor)
    registry.observer.observe()
    statuses = [registry.status(name) for name in [*ids, *(each.id for each in submissions)]]
    told = [(status.effect, status.reason) for status in statuses if status is not None]
    assert told == [
        ("applied", None),
        ("no effect", "the operation reveals a key to which the DID is not committed"),
        ("no effect", "the DID has not been created"),
        ("no effect", "the operation reveals a key to which the DID is not committed"),
    ]


@st.composite
def ledgers(draw: st.DrawFn) -> list[Operation]:
    """Operations on one DID in the order of a ledger: with replays, foreign keys, gaps and reorderings."""
    ada, twin = DidOwner("ada"), DidOwner("ada")
    stranger = stranger_on(ada)
    made = [ada.create]
    for kind in draw(st.lists(st.sampled_from("uuurdtsp"), max_size=9)):
        actions: dict[str, Callable[[], Operation]] = {
            "u": ada.update, "r": ada.recover, "d": ada.deactivate, "t": lambda: twin.update([add_service("t")]),
            "s": stranger.update, "p": lambda: draw(st.sampled_from(made)),
        }  # fmt: skip
        made.append(actions[kind]())
    return draw(st.permutations(made)) if draw(st.booleans()) else made


def applied(ledger: list[AnchoredOperation]) -> list[AnchoredOperation]:
    """What resolution applies, by the words of the specification: recoveries first, then updates."""
    state, found = None, list[AnchoredOperation]()
    for create in (each for each in ledger if each.operation.type == OperationType.CREATE):
        state, found = apply(None, create), [create]
        break
    for kinds in ({OperationType.RECOVER, OperationType.DEACTIVATE}, {OperationType.UPDATE}):
        opened = set[str]()
        following: Any = state
        while following is not None and not following.deactivated:
            state, following = following, None
            member = "update_commitment" if OperationType.UPDATE in kinds else "recovery_commitment"
            opened.add(getattr(state, member))
            for anchored in (each for each in ledger if each.operation.type in kinds):
                following = apply(state, anchored)
                if following is not None and getattr(following, member) not in opened:
                    found.append(anchored)
                    break
                following = None
        state = following or state
    return found


@examples(ci=60, long=2_000)
@given(ledgers())
def test_an_operation_has_an_effect_if_it_was_ever_applied(operations: list[Operation]) -> None:
    ledger = [AnchoredOperation(number, 0, operation) for number, operation in enumerate(operations, 1)]
    chain, ever = chain_of(ledger), list[AnchoredOperation]()
    for end in range(len(ledger)):
        ever += applied(ledger[: end + 1])
    assert [chain.effect(each).applied for each in ledger] == [each in ever for each in ledger]
    last = [each for each in applied(ledger) if each.operation.type != OperationType.CREATE]
    assert (chain.state.number if chain.state else None) == (
        last[-1].number if last else next((each.number for each in applied(ledger)), None)
    )


@examples(ci=30, long=500)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("curds"), st.booleans()), max_size=25))
def test_chains_that_are_kept_are_those_of_the_whole_history(steps: list[tuple[int, str, bool]]) -> None:
    people = [DidOwner(f"p{n}") for n in range(3)]
    ledger: dict[str, list[AnchoredOperation]] = {person.suffix: [] for person in people}

    class Rows:
        def late_entries(self, connection: Any) -> tuple[int, int]:
            return 0, 0

        def empty_chain(self) -> Any:
            return chain_of([], SIDETREE)

        def anchored(self, connection: Any, suffixes: list[str], *, after: int = -1) -> Any:
            found = [(suffix, each) for suffix in suffixes for each in ledger[suffix] if each.number > after]
            return sorted(found, key=lambda row: row[1].number)

    chains: Any = ChainCache(Rows())  # type: ignore[arg-type]
    for number, (who, kind, looked) in zip(itertools.count(1), steps, strict=False):
        person = people[who]
        make = {"c": lambda p=person: p.create, "u": person.update, "r": person.recover, "d": person.deactivate}
        operation = make.get(kind, stranger_on(person, f"s{number}").update)()
        ledger[person.suffix].append(AnchoredOperation(number, 0, operation))
        if looked:
            found = chains.of(None, [person.suffix])
            assert found[person.suffix].state == resolve(ledger[person.suffix])
    for suffix, chain in chains.of(None, list(ledger)).items():
        assert chain.state == resolve(ledger[suffix])


def test_a_ledger_of_no_entry_is_not_ahead(clock: VirtualClock, sqlite_fleet: Any) -> None:
    assert isinstance(sqlite_fleet.ledger, MemoryLedger)
    assert not sqlite_fleet.instance()._is_ahead()


def again(person: DidOwner, services: int) -> Operation:
    """An update that commits to a key which was used before."""
    key, used = person.update_key, DidOwner("ada").update_key
    delta_patches = [add_service(f"again{services}")]
    request = update_request(person.suffix, delta_patches, key=key, next_update_key=used.public)
    return parse_request(request, SIDETREE)


def test_an_update_back_to_a_used_key_is_never_anchored(sqlite_fleet: Any, submit: Submit) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    held = submit(registry, ada.update(), again(ada, 0))
    for _ in range(3):
        anchor(registry)
    assert len(held) == 2 and registry.status(held[1]).state == OperationState.REJECTED  # type: ignore[union-attr]
    assert codes(registry, *[again(ada, number) for number in range(1, 20)]) == ["not_applicable"] * 19
    assert len(list(sqlite_fleet.ledger.entries())) == 2


def test_what_was_rejected_is_taken_when_it_has_become_valid(
    sqlite_fleet: Any, submit: Submit, elsewhere: DidRegistry
) -> None:
    here, ada = sqlite_fleet.instance(), DidOwner("ada")
    first, second = ada.update(), ada.update()
    submit(elsewhere, ada.create)
    anchor(elsewhere)
    (name,) = submit(here, second)  # held: this registry has read nothing yet
    anchor(here)
    assert here.status(name).state == OperationState.REJECTED  # type: ignore[union-attr]
    assert codes(here, second) == ["not_applicable"], "it would be of no use still"
    submit(elsewhere, first)
    anchor(elsewhere)
    here.work_once()
    assert submit(here, second) == [name]
    anchor(here)
    status = here.status(name)
    assert status is not None and (status.state, status.effect) == (OperationState.OBSERVED, "applied")


def test_an_operation_that_is_observed_between_two_looks_refuses_no_other(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)
    submit(registry, ada.update())
    looked = registry.store.open_ids

    def then_it_is_observed(connection: Any, suffixes: Any) -> Any:
        found = looked(connection, suffixes)
        anchor(registry)
        return found

    monkeypatch.setattr(registry.store, "open_ids", then_it_is_observed)
    assert codes(registry, ada.update()) == [None]


def test_a_ledger_that_cannot_be_read_fails_nobody_at_the_door(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(registry, ada.create)
    anchor(registry)

    def unreadable() -> None:
        raise LedgerError("no answer")

    monkeypatch.setattr(sqlite_fleet.ledger, "head", unreadable)
    assert codes(registry, DidOwner("bob").create, stranger_on(ada).update()) == [None, None], (
        "one is created, one held"
    )


def test_what_another_registry_has_anchored_is_not_anchored_again(
    sqlite_fleet: Any, submit: Submit, elsewhere: DidRegistry
) -> None:
    here, ada = sqlite_fleet.instance(), DidOwner("ada")
    submit(elsewhere, ada.create)
    anchor(elsewhere)
    here.work_once()
    update = ada.update()
    (name,) = submit(here, update)
    submit(elsewhere, update)
    anchor(elsewhere)
    anchor(here)
    status = here.status(name)
    assert status is not None and (status.state, status.effect) == (OperationState.OBSERVED, "applied")
    assert len(list(sqlite_fleet.ledger.entries())) == 2


def test_what_a_stranger_writes_into_a_file_is_recorded_whatever_it_is(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    bad = sqlite_fleet.files.put(gzip.compress(b'{"\\ud800":1}'))
    sqlite_fleet.ledger.append(f"1.{bad}")
    assert registry.observer.observe() == 1
    assert "\\ud800" in registry.history.anchor(1).fault  # type: ignore[union-attr]
    replay = replay_registry(sqlite_fleet.cas, sqlite_fleet.ledger, registry.history, registry.versions)
    assert replay.findings == ()


def test_one_that_no_reader_would_take_does_not_spoil_the_batch(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door should have refused it; this is what stands behind the door."""
    registry, ada, bob = sqlite_fleet.instance(), DidOwner("ada"), DidOwner("bob")
    submit(registry, ada.create)
    anchor(registry)
    spoiled = ada.update()
    assert spoiled.signed is not None
    odd = encode(b'{"alg":"ES256K"}}')
    text = ".".join([odd, *spoiled.signed.text.split(".")[1:]])
    request = canonical_json({**spoiled.request, "signedData": text})
    good = check_request(canonical_json(spoiled.request), registry.versions.latest)
    registry.store.accept([msgspec.structs.replace(good, request=request)])
    submit(registry, bob.create)
    monkeypatch.setattr("millstream.anchoring.sidetree.operations.read_jws", lambda _: msgspec.structs.replace(
        spoiled.signed, text=text))  # fmt: skip
    anchor(registry)
    status = registry.store.status(good.id)
    assert status is not None and status.state == OperationState.REJECTED
    assert "readers would reject this operation" in (status.reason or "")
    assert registry.history.state(bob.suffix) is not None
