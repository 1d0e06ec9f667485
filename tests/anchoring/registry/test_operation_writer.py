"""The batch writer of operations: when it cuts, what it isolates, and that each operation is anchored once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import (
    AnchoringError,
    CasNotFoundError,
    CasUnavailableError,
    LedgerError,
    LedgerReplacedError,
    ObservationBlockedError,
)
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.registry import (
    OperationState,
    ProtocolVersion,
    ProtocolVersions,
    RegistryError,
    network_versions,
    operation_store,
)
from millstream.anchoring.registry.chain_cache import ChainCache
from millstream.anchoring.registry.history import _ObservedOperations
from millstream.anchoring.registry.operation_observer import OTHER_SECONDS, observe_operations
from millstream.anchoring.registry.size_estimator import EstimatedSizes, count_that_fits, estimate, write_largest_batch
from millstream.anchoring.registry.states import ParsedOperation, QueuedOperation, Submission
from millstream.anchoring.registry.tables import operations as operations_table
from millstream.anchoring.sidetree import (
    ORB,
    SIDETREE,
    BatchTooLargeError,
    Operation,
    OperationType,
    batch_files,
    gzip_json,
    resolve,
    write_batch,
)
from millstream.anchoring.sidetree.batch_reader import OperationBatch, ReadBatch
from millstream.anchoring.sidetree.encoding import canonical, decode, encode, hash_of
from millstream.anchoring.sidetree.keys import _SECP256K1_ORDER
from millstream.core.cid import CidForm, form_of
from millstream.testing.dids import DidOwner, add_service

Submit = Callable[..., list[str]]

_PERSON = DidOwner("kinds")
_BY_TYPE = {
    operation.type: operation
    for operation in (_PERSON.create, _PERSON.update(), _PERSON.recover(), _PERSON.deactivate())
}


def creates(count: int, name: str = "p") -> list[Operation]:
    return [DidOwner(f"{name}{n}").create for n in range(count)]


def parsed(operation: Operation) -> ParsedOperation:
    """*operation* as it is in the queue."""
    request = canonical(operation.request)
    queued = QueuedOperation(1, hash_of(operation.request), operation.suffix, request, "1.1", 0, 0, operation.type)
    return ParsedOperation(queued, operation)


def anchors(fleet: Any) -> list[int]:
    """How many operations each entry of the ledger counts."""
    return [int(entry.anchor_string.partition(".")[0]) for entry in fleet.ledger.entries()]


def test_a_batch_is_cut_when_it_is_full(fleet: Any, submit: Submit) -> None:
    fleet.settings = {"max_operations": 2}
    registry = fleet.instance()
    submit(registry, *creates(9))
    registry.work_once()
    assert anchors(fleet) == [2, 2, 2, 2]
    assert fleet.counts == {"observed": 8, "queued": 1}


def test_a_batch_is_cut_when_its_oldest_operation_has_waited_long_enough(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1, "first"))
    sqlite_fleet.clock.advance(59.0)
    submit(registry, *creates(2, "later"))
    registry.work_once()
    assert anchors(sqlite_fleet) == []
    sqlite_fleet.clock.advance(1.0)
    registry.work_once()
    assert anchors(sqlite_fleet) == [3]


def test_what_waited_before_the_start_is_cut_as_full_batches_and_a_rest(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"max_operations": 4}
    submit(sqlite_fleet.instance("gone"), *creates(23))
    registry = sqlite_fleet.instance()
    registry.work_once()
    sqlite_fleet.clock.advance(60.0)
    registry.work_once()
    assert anchors(sqlite_fleet) == [4, 4, 4, 4, 4, 3]


def test_storage_that_fails_delays_and_loses_nothing(fleet: Any, submit: Submit) -> None:
    fleet.settings = {"max_operations": 2}
    registry = fleet.instance()
    submit(registry, *creates(13))
    registry.queue.claim(100)
    fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        registry.writer.cut(force=True)
    assert anchors(fleet) == []
    registry.writer.cut(force=True)
    assert anchors(fleet) == [2, 2, 2, 2, 2, 2, 1]
    assert fleet.counts == {"observed": 13}


def test_a_ledger_that_fails_delays_and_loses_nothing(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(3))
    registry.queue.claim(100)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_fleet.ledger, "append", lambda *_a, **_k: (_ for _ in ()).throw(LedgerError("gone")))
        with pytest.raises(LedgerError):
            registry.writer.cut(force=True)
    assert sqlite_fleet.counts == {"cut": 3}
    assert len(registry.writer.recover()) == 1
    assert sqlite_fleet.counts == {"observed": 3}


@pytest.mark.smoke
@pytest.mark.parametrize("step", ["put", "append", "anchored", "observe", "close"])
def test_p7_a_writer_that_dies_at_any_step_leaves_one_anchor(
    fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    registry = fleet.instance()
    accepted = submit(registry, *creates(4))
    registry.queue.claim(100)
    owner, name = {
        "put": (fleet.cas, "put_many"),
        "append": (fleet.ledger, "append"),
        "anchored": (registry.store, "anchored"),
        "observe": (registry.observer, "observe"),
        "close": (registry.store, "close_cut"),
    }[step]
    work = getattr(owner, name)

    def dies(*arguments: Any, **named: Any) -> None:
        work(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, dies)
        registry.writer.cut(force=True)
    heir = fleet.instance("heir")
    heir.store.reassign("one", "heir")
    heir.writer.recover()
    heir.store.repost("one", 100)
    heir.queue.claim(100)
    heir.writer.cut(force=True)
    assert anchors(fleet) == [4]
    assert [heir.store.status(name).state for name in accepted] == [OperationState.OBSERVED] * 4


def test_one_operation_that_is_not_valid_any_more_never_stops_the_others(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    good = submit(registry, *creates(3))
    bad = submit(registry, DidOwner("bad").create)
    fleet.sql("UPDATE registry_operations SET version = '0.9'")
    fleet.sql(f"UPDATE registry_operations SET request = '{{}}' WHERE id = '{bad[0]}'")
    registry.queue.claim(100)
    registry.writer.cut(force=True)
    status = registry.store.status(bad[0])
    assert (status.state, status.reason) == (
        OperationState.REJECTED,
        "type: the type of an operation must be create, update, recover or deactivate, not None",
    )
    assert {registry.store.status(name).state for name in good} == {OperationState.OBSERVED}


def test_one_operation_that_cannot_be_read_is_tried_again_by_itself_and_then_dead(fleet: Any, submit: Submit) -> None:
    registry = fleet.instance()
    good, bad = submit(registry, *creates(3)), submit(registry, DidOwner("bad").create)
    fleet.sql(f"UPDATE registry_operations SET request = '{{}}' WHERE id = '{bad[0]}'")
    for _ in range(4):
        registry.queue.claim(100)
        registry.writer.cut(force=True)
    assert anchors(fleet) == [3]
    status = registry.store.status(bad[0])
    reason = "internal error (KeyError: 'type'); please report this"
    assert (status.state, status.retries, status.reason) == (OperationState.DEAD, 2, reason)
    assert {registry.store.status(name).state for name in good} == {OperationState.OBSERVED}


def deep_create(name: str, levels: int, leaf: object = "x", **extra: object) -> Operation:
    """A create of the profile ORB whose delta is nested *levels* deep, down to *leaf*."""
    person = DidOwner(name, curve="Ed25519", profile=ORB)
    value = leaf
    for _ in range(levels - 6):  # the others are those of the delta, the patch and the service
        value = [value]
    service = {"id": "s", "type": "t", "serviceEndpoint": {"a": value}}
    delta = {**(person.create.delta or {}), "patches": [{"action": "add-services", "services": [service]}]}
    suffix_data = {**(person.create.suffix_data or {}), "deltaHash": hash_of(delta), **extra}
    return Operation(OperationType.CREATE, hash_of(suffix_data), delta, suffix_data)


def test_operations_nested_as_deep_as_is_allowed_are_anchored_and_deeper_ones_refused(sqlite_fleet: Any) -> None:
    sqlite_fleet.versions = network_versions(ORB)
    registry = sqlite_fleet.instance()
    sent = [deep_create("a", 500), deep_create("b", 500, 1), deep_create("c", 6, "\u00fc"), deep_create("d", 501)]
    *taken, refused = registry.acceptance.submit_many([canonical(each.request) for each in sent])
    assert [each.error for each in taken] == [None] * 3
    assert "nested deeper than the limit of 500 levels" in refused.error
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert (anchors(sqlite_fleet), sqlite_fleet.counts) == ([3], {"observed": 3})


def test_operations_of_an_earlier_version_that_no_batch_takes_together_are_told_apart(
    sqlite_fleet: Any, submit: Submit
) -> None:
    sqlite_fleet.versions = network_versions(ORB)
    registry, name = sqlite_fleet.instance(), sqlite_fleet.versions.latest.name
    deep, other = deep_create("deep", 600), deep_create("other", 6, 1)
    registry.store.accept([Submission(each.suffix, each.suffix, "create", canonical(each.request), name)
                           for each in (deep, other)])  # fmt: skip
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    status = registry.store.status(deep.suffix)
    assert status.state == OperationState.REJECTED and "nested too deeply" in status.reason
    assert registry.store.status(other.suffix).state == OperationState.OBSERVED


def test_a_strangers_operation_that_cannot_be_recorded_holds_nobody_up(sqlite_fleet: Any) -> None:
    sqlite_fleet.versions = network_versions(ORB)
    registry = sqlite_fleet.instance()
    for operation in (
        deep_create("first", 6),
        deep_create("limit", 500, 1),
        deep_create("beyond", 600, anchorOrigin="\u00fc"),
        deep_create("last", 6),
    ):
        batch = write_batch([operation], ORB)
        for file in batch.files:
            sqlite_fleet.files.put(file.data, batch.cid)
        sqlite_fleet.ledger.append(batch.anchor)
    assert registry.observer.observe() == 4
    faults = [registry.history.anchor(number).fault for number in (1, 2, 3, 4)]
    assert [fault is None for fault in faults] == [True, True, False, True]
    assert "nested deeper" in faults[2]
    assert registry.observer.read_postponed(due=False) == 0
    assert registry.history.postponed_count() == 1


def test_a_cut_whose_operations_were_changed_from_outside_is_not_anchored(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(2))
    registry.queue.claim(100)
    sqlite_fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        registry.writer.cut(force=True)
    sqlite_fleet.sql("DELETE FROM registry_cut_files")  # as if an earlier version had prepared the cut
    sqlite_fleet.sql("UPDATE registry_operations SET place = 1 - place")
    with pytest.raises(AnchoringError, match="another program changed"):
        registry.writer.cut(force=True)
    assert anchors(sqlite_fleet) == []
    submit(registry, *creates(3, "other"))
    registry.queue.claim(100)
    with pytest.raises(AnchoringError, match="another program changed"):
        registry.writer.cut(force=True)
    assert (anchors(sqlite_fleet), sqlite_fleet.counts) == ([3], {"cut": 2, "observed": 3})


@pytest.mark.parametrize("stored", [True, False])
def test_a_prepared_batch_is_finished_by_another_version_of_python_or_zlib(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(30))
    registry.queue.claim(100)
    sqlite_fleet.cas.fail_next()
    with monkeypatch.context() as other, pytest.raises(CasUnavailableError):
        if not stored:  # as Python 3.13 does it, in an earlier version
            other.setattr(gzip_json.compress, "__kwdefaults__", {"system": gzip_json.UNKNOWN})
            other.setattr(gzip_json.pack, "__kwdefaults__", {"system": gzip_json.UNKNOWN})
            other.setattr(batch_files.write_batch, "__kwdefaults__", {"lock": None, "system": gzip_json.UNKNOWN})
        registry.writer.cut(force=True)
    if stored:
        monkeypatch.setattr(gzip_json, "_HEADER", b"\x1f\x8b\x08\0\0\0\0\0\4")  # stands for another zlib
    else:
        sqlite_fleet.sql("DELETE FROM registry_cut_files")
    heir = sqlite_fleet.instance("heir")
    heir.store.reassign("one", "heir")
    (entry,) = heir.writer.recover()
    assert (entry.anchor_string[:3], sqlite_fleet.counts) == ("30.", {"observed": 30})
    with sqlite_fleet.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM registry_cut_files")) == 0


def test_files_of_a_prepared_batch_are_stored_in_pieces(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_store, "_PIECE_BYTES", 100)
    registry = sqlite_fleet.instance()
    submit(registry, *creates(30))
    registry.queue.claim(100)
    sqlite_fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        registry.writer.cut(force=True)
    (cut,) = registry.store.open_cuts()
    files = registry.store.files_of(cut)
    assert cut.anchor_string == f"30.{list(files)[-1]}"
    registry.writer.recover()
    assert {name: sqlite_fleet.files.get(name, 100_000) for name in files} == files


@pytest.mark.parametrize("form", CidForm)
def test_files_are_named_as_the_network_wants_and_a_cut_keeps_its_names(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch, form: CidForm
) -> None:
    sqlite_fleet.versions = ProtocolVersions([ProtocolVersion("1.1", msgspec.structs.replace(SIDETREE, cid=form))])
    registry = sqlite_fleet.instance()
    submit(registry, *creates(3))
    registry.queue.claim(10)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sqlite_fleet.ledger, "append", lambda *_a, **_k: (_ for _ in ()).throw(KeyboardInterrupt))
        registry.writer.cut(force=True)
    sqlite_fleet.versions = ProtocolVersions()  # the setting is changed before the cut is taken up again
    heir = sqlite_fleet.instance("heir")
    heir.store.reassign("one", "heir")
    assert len(heir.writer.recover()) == 1
    assert sqlite_fleet.counts == {"observed": 3}
    assert {form_of(name) for name in sqlite_fleet.files.cids()} == {
        CidForm.UNIXFS_V0 if form == CidForm.UNIXFS_V0 else CidForm.RAW  # these files are of one chunk
    }


def test_a_batch_holds_the_operations_of_one_version(sqlite_fleet: Any, submit: Submit) -> None:
    clock = sqlite_fleet.clock
    stricter = msgspec.structs.replace(SIDETREE, max_delta_bytes=250)
    sqlite_fleet.versions = ProtocolVersions(
        [ProtocolVersion("1.0", SIDETREE), ProtocolVersion("1.1", stricter, clock.now() + 10_000_000)]
    )
    registry = sqlite_fleet.instance()
    large = DidOwner("large")
    old = submit(registry, *creates(2, "old"), large.create)
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    old += submit(registry, large.update([add_service("x" * 50)]))
    clock.advance(11.0)
    new = submit(registry, *creates(2, "new"))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert anchors(sqlite_fleet) == [3, 2]
    assert registry.store.status(old[3]).reason.startswith("delta_too_large")
    assert [registry.store.status(name).anchor for name in new] == [2, 2]


def test_versions_are_in_order_and_stay_known() -> None:
    with pytest.raises(RegistryError, match="order"):
        ProtocolVersions([ProtocolVersion("b", SIDETREE, 2), ProtocolVersion("a", SIDETREE, 1)])
    with pytest.raises(RegistryError, match="is not configured"):
        ProtocolVersions().named("2.0")
    assert ProtocolVersions([ProtocolVersion("b", SIDETREE, 2)]).at(0).name == "b"


# Sizes


def test_a_batch_is_cut_by_the_bytes_of_its_files_as_well(sqlite_fleet: Any, submit: Submit) -> None:
    small = msgspec.structs.replace(SIDETREE, max_chunk_bytes=3_000)
    sqlite_fleet.versions = ProtocolVersions([ProtocolVersion("1.0", small)])
    registry = sqlite_fleet.instance()
    submit(registry, *creates(40))
    registry.queue.claim(100)
    registry.writer.cut()
    cut = anchors(sqlite_fleet)
    assert cut
    assert max(cut) < 40
    registry.writer.cut(force=True)
    assert sum(anchors(sqlite_fleet)) == 40
    for entry in sqlite_fleet.ledger.entries():
        assert registry.history.anchor(entry.number).fault is None


def test_requests_are_read_only_when_a_batch_may_be_due(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = msgspec.structs.replace(SIDETREE, max_chunk_bytes=3_000)
    sqlite_fleet.versions = ProtocolVersions([ProtocolVersion("1.0", small)])
    registry = sqlite_fleet.instance()
    peek, read = registry.queue.peek, list[int]()
    monkeypatch.setattr(registry.queue, "peek", lambda limit: read.append(limit) or peek(limit))
    for number in range(40):
        submit(registry, *creates(1, f"{number}-"))
        registry.work_once()
        if anchors(sqlite_fleet):
            break
    assert number + 1 == anchors(sqlite_fleet)[0] + 1, "it is cut as soon as one operation does not fit"
    assert 0 < len(read) < 10


def _one_left_unread(fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two instances, of which the first has anchored three operations, and was stopped before it read them back."""
    one, two = fleet.instance("one"), fleet.instance("two")
    submit(one, *creates(3))
    one.queue.claim(100)
    with monkeypatch.context() as stopped:
        stopped.setattr(one.observer, "observe", lambda **_: 1 / 0)
        stopped.setattr(one.writer, "_with_effect", lambda parsed, _rejected: parsed)
        with pytest.raises(ZeroDivisionError):
            one.writer.cut(force=True)
    return one, two


def test_a_batch_is_read_back_by_the_instance_that_cut_it_and_by_no_other(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _one_left_unread(sqlite_fleet, submit, monkeypatch)
    assert sqlite_fleet.ledger.head().number == 1
    two.work_once()
    assert two.history.position()[0] == 0, "its files were not read a second time"
    one.work_once()
    assert two.history.position()[0] == 1
    assert sqlite_fleet.counts == {OperationState.OBSERVED: 3}


def test_an_instance_that_cuts_leaves_the_batch_of_another_one_to_that(
    fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _one_left_unread(fleet, submit, monkeypatch)
    submit(two, *creates(2, "later"))
    two.queue.claim(100)
    waits, reads = list[float](), list[str]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            one.writer.recover()
            reads.clear()

    get = fleet.cas.get
    monkeypatch.setattr(fleet.clock, "sleep", sleep)
    monkeypatch.setattr(fleet.cas, "get", lambda cid, limit: (reads.append(cid), get(cid, limit))[1])
    two.writer.cut(force=True)
    assert len(waits) == 3
    assert two.history.position()[0] == 2
    assert len(set(reads)) == len(reads) == 3, "the files of its own batch"
    assert fleet.counts == {OperationState.OBSERVED: 5}


def test_an_instance_reads_the_batch_of_one_that_does_not_come_back(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = _one_left_unread(sqlite_fleet, submit, monkeypatch)
    submit(two, *creates(2, "later"))
    two.queue.claim(100)
    began = sqlite_fleet.clock.monotonic()
    two.writer.cut(force=True)
    assert two.history.position()[0] == 2
    assert sqlite_fleet.clock.monotonic() - began == pytest.approx(OTHER_SECONDS, abs=0.1)


def test_no_file_is_estimated_to_grow_by_more_than_half_of_a_request() -> None:
    person = DidOwner("sizes")
    for operation in (person.create, person.update(), person.recover(), person.deactivate()):
        half = len(canonical(operation.request)) / 2
        sizes = EstimatedSizes()
        sizes.add(operation)
        assert max(msgspec.structs.astuple(sizes)) <= half


def test_requests_are_estimated_like_their_operations_and_unread_ones_no_lower() -> None:
    person, exact, most = DidOwner("unread"), EstimatedSizes(), EstimatedSizes()
    for operation in (person.create, person.update(), person.recover(), person.deactivate()):
        request = canonical(operation.request)
        exact.add(operation)
        most.add_unread(operation.type.value, 1, len(request))
    person = DidOwner("unread")
    operations = (person.create, person.update(), person.recover(), person.deactivate())
    assert estimate(canonical(operation.request) for operation in operations) == exact
    pairs = zip(msgspec.structs.astuple(exact), msgspec.structs.astuple(most), strict=True)
    assert all(one <= other for one, other in pairs)


@given(
    kinds=st.lists(st.sampled_from(list(OperationType)), max_size=60),
    limits=st.tuples(*[st.integers(400, 20_000)] * 4),
    most=st.integers(1, 70),
)
def test_as_many_operations_fit_as_are_estimated_one_by_one(
    kinds: list[OperationType], limits: tuple[int, ...], most: int
) -> None:
    names = ("max_core_index_bytes", "max_provisional_index_bytes", "max_proof_bytes", "max_chunk_bytes")
    narrow = msgspec.structs.replace(SIDETREE, max_operations=most, **dict(zip(names, limits, strict=True)))
    operations, sizes, count = [parsed(_BY_TYPE[kind]) for kind in kinds], EstimatedSizes(), 0
    for each in operations[:most]:
        sizes.add(each.operation)
        if sizes.left(narrow) < 0:
            count = max(count, 1)
            break
        count += 1
    assert count_that_fits(operations, narrow) == count


def test_what_a_registry_anchors_is_recorded_as_it_was_stored(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, people = sqlite_fleet.instance(), [DidOwner(f"stored{n}") for n in range(4)]
    record, recorded = registry.history.record, list[tuple[Any, Any]]()

    def recording(*parts: Any, accepted: Any) -> bool:
        recorded.append((_ObservedOperations(*parts), _ObservedOperations(*parts, accepted)))
        with monkeypatch.context() as nothing_written:
            nothing_written.setattr("millstream.anchoring.registry.history.canonical", lambda _: 1 / 0)
            return record(*parts, accepted=accepted)  # type: ignore[no-any-return]

    monkeypatch.setattr(registry.history, "record", recording)
    for operations in ([each.create for each in people], [each.update() for each in people[:2]]):
        submit(registry, *operations)
        registry.queue.claim(10)
        registry.writer.cut(force=True)
    assert len(recorded) == 2 and sqlite_fleet.counts == {"observed": 6}
    query = sa.select(operations_table.c.seq, operations_table.c.id)
    ids = dict(map(tuple, registry.store.database.rows(query)))
    for anew, stored in recorded:
        assert stored.rows == anew.rows and not stored.ids
        assert [(ids[seq], place) for seq, place in stored.places] == anew.ids


def test_only_operations_of_the_own_batch_are_recorded_as_they_were_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another registry may compare as equal to ours and differ: ``1`` and ``true`` in a delta."""
    accepted, recorded = {"suffix": object()}, list[Any]()

    class History:
        def record(self, _entry: Any, _batch: Any, _fault: Any, *, accepted: Any) -> bool:
            recorded.append(accepted)
            return True

    monkeypatch.setattr("millstream.anchoring.registry.operation_observer.read_entry", lambda *_a, **_k: (None, "bad"))
    known = ReadBatch("1.ours", SIDETREE, (), OperationBatch((), ()))
    for anchor in ("1.theirs", "1.ours"):
        entry, files = LedgerEntry(anchor, "hash", 1, "", 0), cast("Any", _NoFiles())
        observe_operations(cast("Any", History()), files, cast("Any", None), entry, known=known, accepted=accepted)  # type: ignore[arg-type]
    assert recorded == [{}, accepted]


class _NoFiles:
    get = None


def test_an_operation_with_two_ids_is_recorded_by_both(sqlite_fleet: Any, submit: Submit) -> None:
    registry, person = sqlite_fleet.instance(), DidOwner("spelled")
    submit(registry, person.create)
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    update = person.update()
    message, _, signature = update.signed.text.rpartition(".")
    raw = decode(signature)
    high = raw[:32] + (_SECP256K1_ORDER - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    request = {**update.request, "signedData": f"{message}.{encode(high)}"}
    name = registry.acceptance.submit(canonical(request)).id
    assert name != hash_of(request)
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert registry.store.status(name).state == OperationState.OBSERVED


def test_operations_that_wait_are_not_read_while_their_files_cannot_be_full(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = msgspec.structs.replace(SIDETREE, max_core_index_bytes=2_000)  # in which updates have no part
    sqlite_fleet.versions = network_versions(narrow)
    registry, people = sqlite_fleet.instance(), [DidOwner(f"narrow{n}") for n in range(8)]
    submit(registry, *[person.create for person in people])
    registry.queue.claim(100)
    registry.writer.cut(force=True)
    submit(registry, *[person.update() for person in people])
    looks, peek = list[int](), registry.queue.peek
    monkeypatch.setattr(registry.queue, "peek", lambda limit: looks.append(limit) or peek(limit))
    registry.work_once()
    assert (looks, anchors(sqlite_fleet)) == ([], [8])
    sqlite_fleet.clock.advance(60.0)
    registry.work_once()
    assert (len(looks), anchors(sqlite_fleet)) == (1, [8, 8])


def test_operations_that_wait_are_counted_when_they_come_and_not_at_every_look(fleet: Any, submit: Submit) -> None:
    registry, looks = fleet.instance(), list[str]()
    registry.work_once()
    sa.event.listen(fleet.engine, "before_cursor_execute", lambda *event: looks.append(event[2]))
    for number in range(3):
        submit(registry, *creates(2, f"{number}-"))
        registry.work_once()
    looks.clear()
    for _ in range(5):
        registry.work_once()
    assert not [look for look in looks if "sum(" in look.lower()]


def test_the_bound_of_a_queue_is_never_below_what_may_be_cut(sqlite_fleet: Any, submit: Submit) -> None:
    sqlite_fleet.settings = {"max_operations": 4}
    registry, people = sqlite_fleet.instance(), [DidOwner(f"bound{n}") for n in range(6)]
    seen = list[tuple[int, int]]()

    def look() -> None:
        bound, exact = registry.queue.bound(), registry.queue.summary()
        for kind, (count, size) in exact.by_type.items():
            assert bound.by_type[kind] >= (count, size)
        assert bound.versions >= exact.versions and (not exact.oldest or 0 < bound.oldest <= exact.oldest)
        seen.append((bound.count, exact.count))

    for operations in (
        [p.create for p in people[:3]],
        [p.update() for p in people[:3]],
        [p.create for p in people[3:]],
    ):
        sqlite_fleet.clock.advance(1.0)
        submit(registry, *operations)
        registry.queue.add([status.id for p in people for status in registry.store.statuses_of(p.suffix)])
        look()
    registry.writer.cut()
    look()
    registry.queue.remove(registry.queue.peek(1)).nack({})
    registry.queue.claim(10)
    look()
    registry.queue.count_anew()
    look()
    assert seen == [(3, 3), (6, 3), (9, 6), (1, 1), (2, 1), (1, 1)]
    sqlite_fleet.sql("UPDATE registry_operations SET instance = 'two' WHERE state = 'queued'")
    assert registry.queue.bound().count == 1
    sqlite_fleet.clock.advance(10.0)
    assert registry.queue.bound().count == 0, "the database may know what was not counted"


def test_a_batch_shrinks_until_it_fits_whatever_was_estimated() -> None:
    operations = [parsed(operation) for operation in creates(30)]
    narrow = msgspec.structs.replace(SIDETREE, max_core_index_bytes=900)
    batch = write_largest_batch(operations, narrow)
    assert 0 < len(batch.operations) <= count_that_fits(operations, SIDETREE)
    core = next(file for file in batch.files if file.kind == "core index file")
    assert len(core.data) <= 900
    with pytest.raises(BatchTooLargeError):
        write_largest_batch(operations, msgspec.structs.replace(SIDETREE, max_core_index_bytes=100))


def test_a_batch_whose_file_would_be_too_large_after_decompression_is_cut_smaller(
    sqlite_fleet: Any, submit: Submit
) -> None:
    """Suffix data that repeats itself has few bytes under GZIP, but a reader unpacks only three times the limit."""
    narrow = msgspec.structs.replace(ORB, max_core_index_bytes=1_500)
    sqlite_fleet.versions = ProtocolVersions([ProtocolVersion("1.0", narrow)])
    registry = sqlite_fleet.instance()
    origin = "https://orb.example/" + "x" * 1_500
    people = [DidOwner(f"origin{n}", profile=ORB).create for n in range(4)]
    origins = [{**(create.suffix_data or {}), "anchorOrigin": origin} for create in people]
    accepted = submit(
        registry,
        *(
            Operation(OperationType.CREATE, hash_of(data), create.delta, data)
            for create, data in zip(people, origins, strict=True)
        ),
    )
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert anchors(sqlite_fleet) == [2, 2]
    assert [registry.store.status(name).state for name in accepted] == [OperationState.OBSERVED] * 4


def test_an_operation_that_fits_in_no_file_is_rejected(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    accepted = submit(registry, *creates(2))
    sqlite_fleet.versions = ProtocolVersions(
        [ProtocolVersion("1.0", msgspec.structs.replace(SIDETREE, max_core_index_bytes=100))]
    )
    later = sqlite_fleet.instance("later")
    later.queue.claim(10)
    later.writer.cut(force=True)
    assert [later.store.status(name).state for name in accepted] == [OperationState.REJECTED] * 2
    assert "core index file" in later.store.status(accepted[0]).reason


# Observing


def test_every_instance_sees_what_any_has_anchored(fleet: Any, submit: Submit) -> None:
    one, two = fleet.instance("one"), fleet.instance("two")
    person = DidOwner("seen")
    submit(one, person.create)
    one.queue.claim(10)
    one.writer.cut(force=True)
    assert two.observer.observe() == 0, "observed by one for all"
    assert two.history.resolve(f"did:sidetree:{person.suffix}") is not None
    assert two.history.state(person.suffix) == resolve(two.history.operations(person.suffix))


def test_an_anchor_of_nonsense_is_recorded_and_passed_over(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    nonsense = sqlite_fleet.files.put(b"nonsense")
    sqlite_fleet.ledger.append(f"1.{nonsense}")
    submit(registry, *creates(1))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert "as GZIP" in registry.history.anchor(1).fault
    assert registry.history.anchor(2).fault is None


def test_an_entry_whose_file_is_nowhere_is_read_when_it_is_back(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    other = sqlite_fleet.instance("other")
    sqlite_fleet.sql("DELETE FROM registry_anchors")
    sqlite_fleet.sql("DELETE FROM registry_history")
    files = {cid: sqlite_fleet.files.get(cid, 10_000) for cid in sqlite_fleet.files.cids()}
    for cid, data in files.items():
        sqlite_fleet.files.overwrite(cid, None)
        assert (other.observer.observe(), other.history.postponed_count()) == (1, 1)
        assert "anchor 1" in other.history.anchor(1).fault
        assert other.observer.read_postponed(due=False) == 0
        sqlite_fleet.files.put(data)
        assert other.observer.read_postponed() == 0, "it waits for its turn"
        sqlite_fleet.clock.advance(60)
        assert (other.observer.read_postponed(), other.history.postponed_count()) == (1, 0)
        assert (other.history.anchor(1).fault, other.history.anchor(1).operations) == (None, 1)
        for table in ("registry_anchors", "registry_history", "registry_pending_anchors"):
            sqlite_fleet.sql(f"DELETE FROM {table}")


def test_recovers_and_deactivates_count_while_a_provisional_file_is_missing(fleet: Any) -> None:
    """As in the reference implementation: or whoever withholds a file of a batch would keep a DID active."""
    registry, people = fleet.instance(), [DidOwner(f"withheld{n}") for n in range(4)]
    kept = ChainCache(registry.history)
    first = write_batch([person.create for person in people[1:]], SIDETREE)
    batch = write_batch([people[0].create, people[1].update(), people[2].recover(), people[3].deactivate()], SIDETREE)
    for file in (*first.files, *batch.files):
        if file.kind != "chunk file" or file in first.files:
            fleet.files.put(file.data)
    for anchor in (first.anchor, batch.anchor):
        fleet.ledger.append(anchor)

    def seen() -> list[str]:
        """What each DID is, by its state and by the chain that is kept for it."""
        chains = fleet.database.query(lambda c: kept.of(c, [person.suffix for person in people]))
        found = list[str]()
        for person in people:
            state, chain = registry.history.state(person.suffix), chains[person.suffix].state
            assert (state and state.update_commitment) == (chain and chain.update_commitment)
            found.append(
                "none"
                if state is None
                else "deactivated"
                if state.deactivated
                else " ".join(service["id"] for service in state.document.get("services", []))
            )
        return found

    registry.observer.observe()
    assert seen() == ["none", "home", "", "deactivated"]
    assert registry.history.anchor(2).operations == 2
    assert registry.history.postponed_count() == 1
    assert registry.observer.read_postponed(due=False) == 0
    assert seen() == ["none", "home", "", "deactivated"]
    for file in batch.files:
        fleet.files.put(file.data)
    assert registry.observer.read_postponed(due=False) == 1
    assert seen() == ["home", "home s3", "r4", "deactivated"]
    assert registry.history.anchor(2).operations == 4
    assert registry.history.counts() == {1: 3, 2: 4}


def test_a_deactivate_counts_as_soon_as_its_core_files_are_there(sqlite_fleet: Any) -> None:
    registry, person = sqlite_fleet.instance(), DidOwner("late core")
    chains = ChainCache(registry.history)

    def is_deactivated() -> bool:
        found = sqlite_fleet.database.query(lambda connection: chains.of(connection, [person.suffix]))
        return found[person.suffix].state.deactivated  # type: ignore[no-any-return]

    first = write_batch([person.create], SIDETREE)
    second = write_batch([DidOwner("another").create, person.deactivate()], SIDETREE)
    for file in first.files:
        sqlite_fleet.files.put(file.data)
    for anchor in (first.anchor, second.anchor):
        sqlite_fleet.ledger.append(anchor)
    registry.observer.observe()
    assert not is_deactivated()
    for file in second.files:
        if file.kind.startswith("core"):
            sqlite_fleet.files.put(file.data)
    assert registry.observer.read_postponed(due=False) == 0
    assert is_deactivated()
    assert registry.history.state(person.suffix).deactivated
    assert registry.history.anchor(2).operations == 1


def test_storage_that_does_not_answer_stops_the_observer(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    sqlite_fleet.sql("DELETE FROM registry_anchors")
    sqlite_fleet.sql("DELETE FROM registry_history")

    def unavailable(cid: str, limit: int) -> bytes:
        raise CasUnavailableError("no answer")

    sqlite_fleet.cas.get = unavailable
    with pytest.raises(ObservationBlockedError, match="anchor 1"):
        sqlite_fleet.instance("other").observer.observe()


def test_a_strangers_anchor_without_files_holds_nobody_up(sqlite_fleet: Any, submit: Submit) -> None:
    registry, ada = sqlite_fleet.instance(), DidOwner("ada")
    absent = write_batch([DidOwner("absent").create], registry.versions.latest.profile)
    sqlite_fleet.ledger.append(absent.anchor)
    submit(registry, ada.create)
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    assert registry.history.state(ada.suffix) is not None
    assert registry.history.postponed_count() == 1
    for file in absent.files:
        sqlite_fleet.files.put(file.data)
    sqlite_fleet.clock.advance(60)
    registry.tasks.run_due()
    assert registry.history.state(DidOwner("absent").suffix) is not None


def test_files_that_are_lost_between_the_anchor_and_its_observation_are_written_again(
    sqlite_fleet: Any, submit: Submit
) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1))
    registry.queue.claim(10)
    read = sqlite_fleet.cas.get

    def lost(cid: str, limit: int) -> bytes:
        raise CasNotFoundError(f"there is no file {cid}")

    sqlite_fleet.cas.get = lost
    with pytest.raises(ObservationBlockedError, match="missing from content-addressed storage"):
        registry.writer.cut(force=True)
    assert sqlite_fleet.counts == {"anchored": 1}
    sqlite_fleet.cas.get = read
    registry.writer.cut(force=True)
    assert sqlite_fleet.counts == {"observed": 1}
    assert len(list(sqlite_fleet.ledger.entries())) == 1


def test_operations_that_are_observed_at_once_are_not_written_as_anchored_before(
    sqlite_fleet: Any, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, changes = sqlite_fleet.instance(), list[str]()
    submit(registry, *creates(3))
    registry.queue.claim(10)
    sa.event.listen(sqlite_fleet.engine, "before_cursor_execute", lambda *event: changes.append(event[2]))
    registry.writer.cut(force=True)
    changes = [change for change in changes if change.startswith("UPDATE registry_operations")]
    assert len(changes) == 3, "cut, observed, and those that the anchor does not have"
    assert sqlite_fleet.counts == {"observed": 3}
    submit(registry, *creates(2, "later"))
    registry.queue.claim(10)
    with monkeypatch.context() as blocked, pytest.raises(ObservationBlockedError):
        blocked.setattr(sqlite_fleet.cas, "get", _unavailable)
        registry.writer.cut(force=True)
    assert sqlite_fleet.counts == {"observed": 3, "anchored": 2}
    assert len(registry.writer.recover()) == 1
    assert sqlite_fleet.counts == {"observed": 5}


def _unavailable(cid: str, limit: int) -> bytes:
    raise CasUnavailableError("no answer")


def test_a_ledger_that_was_rewritten_is_noticed(sqlite_fleet: Any, submit: Submit) -> None:
    registry = sqlite_fleet.instance()
    submit(registry, *creates(1))
    registry.queue.claim(10)
    registry.writer.cut(force=True)
    sqlite_fleet.sql(f"UPDATE registry_anchors SET hash = '{'1' * 64}'")
    sqlite_fleet.ledger.append(f"1.{sqlite_fleet.files.put(b'x')}")
    with pytest.raises(LedgerError, match="rewritten"):
        registry.observer.observe()


def test_nothing_is_anchored_by_a_ledger_that_lost_entries_until_it_is_read_again(
    sqlite_fleet: Any, submit: Submit
) -> None:
    registry, ids = sqlite_fleet.instance(), list[str]()
    for operation in creates(3):
        ids += submit(registry, operation)
        registry.queue.claim(10)
        registry.writer.cut(force=True)
    ids += submit(registry, *creates(1, "cut"))
    registry.queue.claim(10)
    sqlite_fleet.cas.fail_next()
    with pytest.raises(CasUnavailableError):
        registry.writer.cut(force=True)
    ids += submit(registry, *creates(1, "queued"))
    del sqlite_fleet.ledger._entries[1:]  # the log of the ledger was restored from a backup
    reason = "the ledger of identifiers ends at entry 1, but entry 3 was observed before.*observe --rebuild`"
    for step in (registry.writer.recover, registry.writer.cut, registry.observer.observe):
        with pytest.raises(LedgerReplacedError, match=reason):
            step()
    assert anchors(sqlite_fleet) == [1]
    again = sqlite_fleet.instance("again")
    assert again.observer.rebuild() == 1
    assert sqlite_fleet.counts == {"accepted": 4, "observed": 1}
    again.queue.claim(10)
    again.writer.cut(force=True)
    assert (anchors(sqlite_fleet), sqlite_fleet.counts) == ([1, 4], {"observed": 5})
    assert [again.store.status(name).anchor for name in ids] == [1, 2, 2, 2, 2]
    assert again.observer.rebuild() == 0


def test_two_ledgers_in_one_database_are_told_apart_by_their_hashes(sqlite_fleet: Any) -> None:
    registry = sqlite_fleet.instance()
    entry = sqlite_fleet.ledger.append(f"1.{sqlite_fleet.files.put(b'nonsense')}")
    observe_operations(registry.history, sqlite_fleet.cas, sqlite_fleet.versions, entry)
    other = msgspec.structs.replace(entry, hash="f" * 64)
    with pytest.raises(LedgerError, match=f"its hash is {entry.hash}, not {'f' * 64}.* restore the database from a"):
        observe_operations(registry.history, sqlite_fleet.cas, sqlite_fleet.versions, other)
