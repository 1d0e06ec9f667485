"""A registry that follows another one: what it records, what stops it, and where it goes on."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from millstream.anchoring import MemoryCas, MemoryLedger
from millstream.anchoring.errors import CasUnavailableError, LedgerError, ObservationBlockedError
from millstream.anchoring.ledger import LedgerEntry, encode_entry
from millstream.anchoring.ledger_source import FileLedger
from millstream.anchoring.registry import (
    DidRegistry,
    FollowError,
    FollowState,
    LedgerFollower,
    ProtocolVersion,
    ProtocolVersions,
    ReadOnlyError,
    RegistryDatabase,
)
from millstream.anchoring.registry.follow_state import follow_state
from millstream.anchoring.registry.registry_replay import replay_registry
from millstream.anchoring.remote_cas import FallbackCas, open_cas_source
from millstream.anchoring.sidetree import ORB, SIDETREE
from millstream.core.canonical import canonical_json
from millstream.core.clock import VirtualClock
from millstream.testing.dids import DidOwner


class Source:
    """A registry that writes: its people, its ledger and its files."""

    def __init__(self, folder: Path, versions: ProtocolVersions | None = None) -> None:
        self.clock = VirtualClock()
        self.engine = sa.create_engine(f"sqlite:///{folder / 'source.db'}")
        self.cas, self.ledger = MemoryCas(), MemoryLedger(self.clock)
        database = RegistryDatabase(self.engine, self.clock)
        self.registry = DidRegistry(database, self.cas, self.ledger, instance="source", versions=versions)
        self.people: list[DidOwner] = []
        self.file = folder / "ledger.jsonl"

    def write(self, batches: int) -> None:
        """So many batches more: each creates a DID, and changes one that was there."""
        for _ in range(batches):
            operations = [person.update() for person in self.people[-1:]]
            self.people.append(DidOwner(f"person {len(self.people)}"))
            operations.append(self.people[-1].create)
            self.registry.acceptance.submit_many([canonical_json(operation.request) for operation in operations])
            while self.registry.queue.claim(1000):
                pass
            self.registry.writer.cut(force=True)
        self.export()

    def export(self, entries: list[LedgerEntry] | None = None, *, plain: bool = False) -> None:
        """The ledger, or *entries* in its place, as a file."""
        chosen = list(self.ledger.entries()) if entries is None else entries
        self.file.write_bytes(b"".join((plain_line(e) if plain else encode_entry(e)) + b"\n" for e in chosen))


class Target:
    """A registry that follows."""

    def __init__(self, folder: Path, name: str = "target") -> None:
        self.clock = VirtualClock()
        self.engine = sa.create_engine(f"sqlite:///{folder / name}.db")
        self.database = RegistryDatabase(self.engine, self.clock)

    def follower(
        self, source: Source, cas: Any = None, versions: ProtocolVersions | None = None, **options: Any
    ) -> LedgerFollower:
        ledger = FileLedger(source.file)
        return LedgerFollower(self.database, cas or source.cas, ledger, versions or ProtocolVersions(), **options)

    def registry(self) -> DidRegistry:
        return DidRegistry(self.database, MemoryCas(), MemoryLedger(self.clock), instance="target")

    @property
    def state(self) -> FollowState:
        with self.engine.connect() as connection:
            found = follow_state(connection)
        assert found is not None
        return found


def plain_line(entry: LedgerEntry) -> bytes:
    return json.dumps({"number": entry.number, "time": entry.time, "anchor_string": entry.anchor_string}).encode()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    yield made
    made.registry.close()
    made.engine.dispose()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path)
    yield made
    made.engine.dispose()


def same(source: Source, target: Target) -> None:
    """Every identifier resolves to the same in both."""
    history = LedgerFollower(target.database, source.cas, FileLedger(source.file), ProtocolVersions()).history
    for person in source.people:
        did = f"did:sidetree:{person.suffix}"
        assert history.resolve(did) == source.registry.history.resolve(did) is not None


@pytest.mark.parametrize("plain", [False, True], ids=["chain", "plain list"])
def test_every_identifier_resolves_to_the_same(source: Source, target: Target, *, plain: bool) -> None:
    source.write(6)
    source.export(plain=plain)
    told = []
    done = target.follower(source, told=told.append).catch_up()
    assert (done.entries, done.operations, done.faults, done.position, done.behind) == (6, 11, 0, 6, 0)
    assert done.chain is not plain
    assert [record.number for record in told] == [1, 2, 3, 4, 5, 6]
    same(source, target)
    history = target.follower(source).history
    assert replay_registry(source.cas, source.ledger, history, ProtocolVersions()).findings == ()


@pytest.mark.served
def test_a_server_of_databases_follows_as_well(source: Source, target: Target, mariadb_fleet: Any) -> None:
    source.write(3)
    target.database, target.engine = mariadb_fleet.database, mariadb_fleet.engine
    assert target.follower(source).catch_up().entries == 3
    same(source, target)
    with pytest.raises(ReadOnlyError):
        mariadb_fleet.instance().acceptance.submit(canonical_json(DidOwner("new").create.request))
    source.export(list(source.ledger.entries())[:2])
    with pytest.raises(LedgerError):
        target.follower(source).catch_up()
    assert (target.state.position, "truncated" in (target.state.error or "")) == (3, True)


def test_nothing_new_is_nothing_done_and_what_is_new_goes_on(source: Source, target: Target) -> None:
    source.write(3)
    target.follower(source).catch_up()
    assert target.follower(source).catch_up().entries == 0
    follower = target.follower(source)
    follower.catch_up()
    assert follower.catch_up().entries == 0, "not even read, since the file is the same"
    source.write(2)
    assert follower.catch_up().entries == 2
    assert follower.total.position == 5
    same(source, target)


def test_a_plain_list_and_a_chain_of_the_same_anchors_are_the_same_ledger(source: Source, target: Target) -> None:
    source.write(2)
    source.export(plain=True)
    target.follower(source).catch_up()
    source.write(2)
    assert target.follower(source).catch_up().entries == 2


@pytest.mark.parametrize("plain", [False, True], ids=["chain", "plain list"])
@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_entry_that_was_rewritten_is_refused_and_named(
    source: Source, target: Target, at: int, *, plain: bool
) -> None:
    source.write(5)
    source.export(plain=plain)
    target.follower(source).catch_up()
    other = MemoryLedger(VirtualClock())
    for entry in source.ledger.entries():
        other.append(f"7.{source.cas.put(b'other')}" if entry.number == at else entry.anchor_string)
    source.export(list(other.entries()), plain=plain)
    with pytest.raises(LedgerError, match=rf"entry {at} .* does not continue .* up to entry 5: .* rewritten"):
        target.follower(source).catch_up()
    assert target.state.error is not None and "rewritten" in target.state.error
    assert target.state.position == 5


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_an_entry_of_a_plain_list_that_was_taken_out_is_noticed(source: Source, target: Target, gone: int) -> None:
    source.write(5)
    source.export(plain=True)
    target.follower(source).catch_up()
    entries = list(source.ledger.entries())
    del entries[gone]
    source.export(entries, plain=True)
    with pytest.raises(LedgerError, match=r"rewritten|truncated"):
        target.follower(source).catch_up()


def test_an_entry_put_into_a_plain_list_is_noticed(source: Source, target: Target) -> None:
    source.write(3)
    apart = [msgspec.structs.replace(entry, number=entry.number * 10) for entry in source.ledger.entries()]
    source.export(apart, plain=True)
    target.follower(source).catch_up()
    source.export([apart[0], msgspec.structs.replace(apart[0], number=15), *apart[1:]], plain=True)
    with pytest.raises(LedgerError, match="entry 15"):
        target.follower(source).catch_up()


def test_a_ledger_that_is_shorter_than_what_was_observed_is_refused(source: Source, target: Target) -> None:
    source.write(4)
    target.follower(source).catch_up()
    source.export(list(source.ledger.entries())[:2])
    with pytest.raises(LedgerError, match="ends at entry 2, but entry 4 was observed"):
        target.follower(source).catch_up()
    source.export([])
    with pytest.raises(LedgerError, match="ends at entry 0"):
        target.follower(source).catch_up()


def test_the_rest_of_a_ledger_is_enough_where_it_links_on(source: Source, target: Target) -> None:
    source.write(2)
    target.follower(source).catch_up()
    source.write(3)
    entries = list(source.ledger.entries())
    source.export(entries[3:])
    with pytest.raises(LedgerError, match="begins at entry 4: use a copy of the ledger that begins at entry 3"):
        target.follower(source).catch_up()
    source.export(entries[2:])
    assert target.follower(source).catch_up().entries == 3
    same(source, target)


def test_a_broken_entry_keeps_those_before_it(source: Source, target: Target) -> None:
    source.write(5)
    entries = list(source.ledger.entries())
    entries[3] = msgspec.structs.replace(entries[3], anchor_string="1.x")
    source.export(entries)
    with pytest.raises(LedgerError, match="entry 4 was changed"):
        target.follower(source).catch_up()
    assert target.state.position == 3
    source.export()
    assert target.follower(source).catch_up().entries == 2
    same(source, target)


def test_an_entry_whose_file_no_place_has_is_passed_over_until_it_is_there(source: Source, target: Target) -> None:
    source.write(5)
    cid = list(source.ledger.entries())[2].anchor_string.partition(".")[2]
    data = source.cas.get(cid, 1_000_000)
    source.cas.overwrite(cid, None)
    done = target.follower(source).catch_up()
    assert (done.entries, done.waiting) == (5, 1)
    assert (target.state.position, target.state.behind) == (5, 0)
    assert "anchor 3" in (target.state.error or "") and cid in (target.state.error or "")
    source.cas.put(data)
    assert target.follower(source).catch_up().waiting == 0
    assert (target.state.position, target.state.behind, target.state.error) == (5, 0, None)
    same(source, target)


def test_the_files_come_over_http_from_places_of_which_some_lie(source: Source, target: Target, web: Any) -> None:
    source.write(4)
    for cid in source.cas.cids():
        data = source.cas.get(cid, 1_000_000)
        web.answers[f"/lies/{cid}"] = gzip.compress(b'{"operations":{}}')
        web.answers[f"/good/{cid}"] = data
    refused = []
    cas = FallbackCas([open_cas_source(f"{web.url}/{name}") for name in ("lies", "good")], refused.append)
    done = target.follower(source, cas).catch_up()
    assert (done.entries, done.faults) == (4, 0)
    assert len(refused) == 1, "no wrong byte was believed, and who sends one is asked last"
    same(source, target)


def test_entries_that_break_the_rules_are_faults_and_hold_nobody_up(source: Source, target: Target) -> None:
    source.write(1)
    bad = [source.cas.put(data) for data in (b"no gzip", gzip.compress(b"1"), gzip.compress(b"[" * 100_000))]
    for text in [f"1.{cid}" for cid in bad] + ["no anchor string", "0.x", "1.../../etc", "", "1.\u2028", "9" * 700]:
        next_ = MemoryLedger(VirtualClock())
        next_._entries = list(source.ledger.entries())
        source.ledger._entries.append(_forged(source.ledger, text))
    source.write(1)
    done = target.follower(source).catch_up()
    assert (done.entries, done.faults) == (11, 9)
    same(source, target)


def _forged(ledger: MemoryLedger, text: str) -> LedgerEntry:
    """An entry that a stranger's ledger may hold, and ours would refuse."""
    from millstream.anchoring.ledger import entry_hash

    head = ledger.head()
    assert head is not None
    number, previous = head.number + 1, head.hash
    return LedgerEntry(text, entry_hash(text, number, previous, head.time), number, previous, head.time)


def test_a_registry_that_follows_takes_no_operations(source: Source, target: Target) -> None:
    source.write(1)
    target.follower(source).catch_up()
    registry = target.registry()
    for operation in (DidOwner("new").create, source.people[0].update(), DidOwner("unknown").update()):
        with pytest.raises(ReadOnlyError, match=r"follows the ledger .*ledger.jsonl"):
            registry.acceptance.submit(canonical_json(operation.request))
    registry.close()
    assert target.follower(source).catch_up().entries == 0


def test_one_that_was_open_before_it_followed_takes_none_either(source: Source, target: Target) -> None:
    source.write(1)
    registry = target.registry()
    registry.acceptance.submit_many([b"{}"])  # what may be taken was just looked at
    target.follower(source).catch_up()
    with pytest.raises(ReadOnlyError):
        registry.acceptance.submit(canonical_json(DidOwner("new").create.request))
    registry.close()


def test_a_ledger_that_cannot_be_read_closes_no_registry(source: Source, target: Target) -> None:
    with pytest.raises(LedgerError, match=r"cannot read the ledger .*ledger\.jsonl"):
        target.follower(source).catch_up()
    with target.engine.connect() as connection:
        assert follow_state(connection) is None
        pending = follow_state(connection, pending=True)
        assert pending is not None and pending.error is not None
    registry = target.registry()
    assert registry.acceptance.submit(canonical_json(DidOwner("own").create.request)).state == "accepted"
    registry.close()


def test_one_whose_files_cannot_be_had_yet_closes_no_registry(source: Source, target: Target) -> None:
    source.write(1)
    with pytest.raises(ObservationBlockedError):
        target.follower(source, MemoryCas()).catch_up()
    registry = target.registry()
    assert registry.acceptance.submit(canonical_json(DidOwner("own").create.request)).state == "accepted"
    registry.close()
    with pytest.raises(FollowError):
        target.follower(source).catch_up()


def test_a_registry_that_is_told_to_follow_takes_none_from_the_start(target: Target) -> None:
    cas, ledger = MemoryCas(), MemoryLedger(target.clock)
    registry = DidRegistry(target.database, cas, ledger, instance="told", follows="https://registry.example.org")
    with pytest.raises(ReadOnlyError, match=r"registry\.example\.org"):
        registry.acceptance.submit(canonical_json(DidOwner("own").create.request))
    registry.close()


def test_a_registry_with_operations_of_its_own_follows_nobody(source: Source, target: Target) -> None:
    registry = target.registry()
    registry.acceptance.submit(canonical_json(DidOwner("own").create.request))
    source.write(1)
    with pytest.raises(FollowError, match="operations of its own"):
        target.follower(source).catch_up()
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    registry.close()
    with target.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM registry_operations"))  # as they expire
        connection.execute(sa.text("DELETE FROM registry_cuts"))
    with pytest.raises(FollowError, match="operations of its own"):
        target.follower(source).catch_up()


def test_a_registry_stays_in_the_network_that_it_follows(source: Source, target: Target) -> None:
    source.write(1)
    target.follower(source).catch_up()
    for profile in (ORB, msgspec.structs.replace(SIDETREE, method="ion")):
        with pytest.raises(FollowError, match="or database for that network"):
            target.follower(source, versions=ProtocolVersions([ProtocolVersion("1.0", profile)])).catch_up()


def test_another_method_is_answered_under_its_name(source: Source, target: Target) -> None:
    source.write(2)
    ion = ProtocolVersions([ProtocolVersion("1.0", msgspec.structs.replace(SIDETREE, method="ion"))])
    follower = target.follower(source, versions=ion)
    follower.catch_up()
    suffix = source.people[0].suffix
    answer = follower.history.resolve(f"did:ion:{suffix}")
    assert answer is not None and answer["didDocument"]["id"] == f"did:ion:{suffix}"


def test_it_stops_between_two_entries_when_it_is_asked(source: Source, target: Target) -> None:
    source.write(5)
    asked = iter([False, False, True])
    done = target.follower(source).catch_up(lambda: next(asked))
    assert (done.entries, done.position, done.behind) == (3, 3, 2)
    assert target.follower(source).catch_up().entries == 2


def test_two_that_read_the_same_ledger_record_each_entry_once(source: Source, target: Target) -> None:
    source.write(6)
    second = target.follower(source)
    first = target.follower(source, told=lambda record: record.number == 3 and second.catch_up())
    assert first.catch_up().position == 6
    assert second.total.entries == 3
    same(source, target)


def test_two_that_read_different_ledgers_do_not_mix_them(source: Source, target: Target, tmp_path: Path) -> None:
    source.write(4)
    (tmp_path / "other").mkdir()
    other = Source(tmp_path / "other")
    other.people.append(DidOwner("stranger"))
    other.write(4)
    second = target.follower(other)
    follower = target.follower(source, told=lambda record: record.number == 2 and _refused(second))
    assert follower.catch_up().entries == 4
    same(source, target)
    other.registry.close()
    other.engine.dispose()


def _refused(follower: LedgerFollower) -> None:
    with pytest.raises(LedgerError):
        follower.catch_up()


def test_a_process_that_recorded_another_entry_meanwhile_is_noticed(source: Source, target: Target) -> None:
    source.write(3)
    follower = target.follower(source)
    forged = msgspec.structs.replace(list(source.ledger.entries())[2], hash="0" * 64)

    def meanwhile(record: Any) -> None:
        if record.number == 2:
            follower.history.record(forged, None, "from elsewhere")

    follower._told = meanwhile
    with pytest.raises(LedgerError, match="follow different ledgers"):
        follower.catch_up()


def test_hashlinks_of_orb_are_read_by_their_hashes(tmp_path: Path, target: Target) -> None:
    """A network of Orb names files by hashlinks; places are asked by the CID of the same hash."""
    versions = ProtocolVersions([ProtocolVersion("1.0", ORB)])
    source = Source(tmp_path, versions)
    source.write(2)
    asked = []

    class Asking:
        def get(self, cid: str, limit: int) -> bytes:
            asked.append(cid)
            return source.cas.get(cid, limit)

    first = source.ledger._entries[0]
    digest = first.anchor_string.partition(".")[2]
    from millstream.core.cid import digest_from_cid

    link = "hl:u" + base64.urlsafe_b64encode(b"\x12\x20" + digest_from_cid(digest)).decode().rstrip("=")
    source.file.write_bytes(plain_line(msgspec.structs.replace(first, anchor_string=f"1.{link}")) + b"\n")
    done = target.follower(source, Asking(), versions).catch_up()
    assert (done.entries, done.operations, done.faults) == (1, 1, 0)
    assert asked[0] == digest
    source.registry.close()
    source.engine.dispose()


def test_a_place_that_never_answers_for_one_file_holds_nobody_up_for_long(source: Source, target: Target) -> None:
    """As gateways of IPFS are, which answer with 504 for what nobody has."""
    source.write(3)
    cid = list(source.ledger.entries())[1].anchor_string.partition(".")[2]
    read = source.cas.get

    class Gateway:
        def get(self, asked: str, limit: int) -> bytes:
            if asked == cid:
                raise CasUnavailableError("504")
            return read(asked, limit)

    follower = target.follower(source, Gateway())
    for _ in range(3):
        with pytest.raises(ObservationBlockedError):
            follower.catch_up(patient=True)
        assert target.state.position == 1
    assert follower.catch_up(patient=True).waiting == 1
    assert target.state.position == 3
    target.follower(source).catch_up()
    same(source, target)
