from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.anchoring import AnchorIndex, MemoryLedger, Observer
from millstream.anchoring.batch_files import BatchFilePart, pack_batches, pack_rejects
from millstream.anchoring.batch_records import PROTOCOL, EncodedBatch
from millstream.anchoring.cut_manifest import (
    BatchFile,
    CutManifest,
    RejectFile,
    RejectList,
    anchor_string,
    encode_manifest,
)
from millstream.anchoring.errors import LedgerError, LedgerReplacedError, ObservationBlockedError
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.core.canonical import canonical_json
from millstream.core.cid import cid_of
from millstream.core.clock import VirtualClock
from millstream.testing.batches import make_batch, make_batches
from millstream.testing.cas import flip, truncate, vanish


class Forge:
    """Anchors whatever it is told to, by hand and against any rule: what a broken or hostile writer could do."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    def manifest(self, batches: list[EncodedBatch], rejects: Any = (), changes: Any = None) -> bytes:
        files = list(pack_batches(BatchFilePart(b.header_line, b.lines, b.header.count) for b in batches))
        reject_files = list(pack_rejects(rejects))
        uris = self._parts.cas.put_many(file.data for file in [*files, *reject_files])
        manifest = CutManifest(
            config={},
            count=len(batches),
            files=tuple(BatchFile(f.entries, len(f.data), f.messages, u) for f, u in zip(files, uris, strict=False)),
            log="weather",
            messages=sum(file.messages for file in files),
            protocol=PROTOCOL,
            rejects=RejectList(
                len(rejects),
                tuple(
                    RejectFile(len(f.data), f.entries, u) for f, u in zip(reject_files, uris[len(files) :], strict=True)
                ),
            ),
            root=merkle_root([leaf_hash(batch.header_line) for batch in batches]).hex(),
        )
        return canonical_json({**msgspec.to_builtins(manifest), **(changes or {})})

    def anchor(self, manifest: bytes, count: int | None = None) -> int:
        cid = self._parts.cas.put(manifest)
        number = count if count is not None else msgspec.json.decode(manifest).get("count", 1)
        return int(self._parts.ledger.append(anchor_string(number, cid)).number)

    def anchor_files(self, *files: bytes, batches: int = 1, messages: int = 1, root: str = "0" * 64) -> int:
        """An anchor over batch files with any bytes, with a manifest that is well-formed."""
        entries = [BatchFile(batches, len(data), messages, self._parts.cas.put(data)) for data in files]
        count = batches * len(files)
        manifest = CutManifest(
            {}, count, tuple(entries), "weather", messages * len(files), PROTOCOL, RejectList(), root
        )
        return self.anchor(encode_manifest(manifest))


@pytest.fixture
def forge(parts: Any) -> Forge:
    return Forge(parts)


def reason_of(parts: Any, number: int) -> str:
    parts.observer.observe()
    reason = parts.index.anchor(number).reason
    assert reason is not None
    return str(reason)


def test_a_good_anchor_is_valid_and_its_messages_are_found(parts: Any, forge: Forge) -> None:
    batches = list(make_batches(20))
    number = forge.anchor(forge.manifest(batches, [(900, "late"), (901, "future")]))
    assert parts.observer.observe().entries == 1
    assert parts.index.anchor(number).reason is None
    for ordinal, batch in enumerate(batches):
        for message_id in batch.ids:
            location = parts.index.locate("weather", message_id)
            assert (location.number, location.ordinal, location.batch) == (number, ordinal, batch.batch)
    assert parts.index.locate("weather", 900) is None
    assert parts.index.locate("flights", 1) is None
    assert parts.index.reject_reason("weather", 901) == (number, "future")
    totals = parts.index.totals()
    assert (totals.batches, totals.messages, totals.rejects) == (20, sum(len(b.ids) for b in batches), 2)


def test_observing_again_changes_nothing(parts: Any, forge: Forge) -> None:
    forge.anchor(forge.manifest(list(make_batches(3))))
    parts.observer.observe()
    before = parts.index.rows(1)
    again = parts.observer.observe()
    assert (again.position, again.entries) == (1, 0)
    assert parts.index.rows(1) == before


def test_a_message_anchored_twice_makes_the_later_batch_invalid_and_the_first_one_wins(
    parts: Any, forge: Forge
) -> None:
    first, overlapping, fresh = make_batch([1, 2]), make_batch([2, 3]), make_batch([4])
    forge.anchor(forge.manifest([first]))
    number = forge.anchor(forge.manifest([overlapping, fresh]))
    parts.observer.observe()
    assert parts.index.anchor(number).reason is None
    assert parts.index.refused(number) == {overlapping.batch: "message 2 is already in a batch of anchor 1"}
    assert parts.index.locate("weather", 2).number == 1
    assert parts.index.locate("weather", 3) is None
    assert parts.index.locate("weather", 4).number == number
    assert list(parts.index.invalid()) == [(2, overlapping.batch, "message 2 is already in a batch of anchor 1")]


def test_a_message_of_an_invalid_batch_may_be_anchored_later(parts: Any, forge: Forge) -> None:
    forge.anchor(forge.manifest([make_batch([1, 2])]))
    forge.anchor(forge.manifest([make_batch([2, 3])]))
    number = forge.anchor(forge.manifest([make_batch([3, 4])]))
    parts.observer.observe()
    assert parts.index.refused(number) == {}
    assert parts.index.locate("weather", 3).number == number


def test_a_batch_id_anchored_twice_is_invalid_the_second_time(parts: Any, forge: Forge) -> None:
    forge.anchor(forge.manifest([make_batch([1], name="one")]))
    forge.anchor(forge.manifest([make_batch([9], name="one")]))
    forge.anchor(forge.manifest([make_batch([5], name="two"), make_batch([6], name="two")]))
    parts.observer.observe()
    assert [found.reason for found in parts.index.find_batch("weather", "one")] == [
        None,
        "this batch id is already in anchor 1",
    ]
    assert [found.reason for found in parts.index.find_batch("weather", "two")] == [
        None,
        "this batch id is in the same anchor twice",
    ]


def test_messages_twice_in_one_anchor_make_the_later_batch_invalid(parts: Any, forge: Forge) -> None:
    twice = make_batch([5, 6, 5], name="twice")
    number = forge.anchor(forge.manifest([make_batch([1, 2]), make_batch([2, 3]), make_batch([3, 4]), twice]))
    parts.observer.observe()
    assert list(parts.index.refused(number).values()) == [
        "message 2 is in another batch of the same anchor",
        "this batch contains a message twice",
    ]
    assert parts.index.locate("weather", 3).ordinal == 2


GOOD = [make_batch([1, 2]), make_batch([3])]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": "records/2"}, "unknown protocol"),
        ({"count": 3}, "is not the sum of"),
        ({"count": 0}, "not 1 to"),
        ({"messages": 4}, "'messages' is not the sum of those of its files"),
        ({"root": "0" * 64}, "Merkle root"),
        ({"root": "0" * 63}, "not 64 lower-case hexadecimal digits"),
        ({"root": "A" * 64}, "not 64 lower-case hexadecimal digits"),
        ({"log": 5}, "invalid manifest"),
        ({"extra": 1}, "invalid manifest"),
        ({"files": []}, "is not the sum of"),
        (
            {"files": [{"batches": 2, "bytes": 10**7, "messages": 3, "uri": cid_of(b"")}]},
            "does not have 1 to 4,000,000 bytes",
        ),
        ({"files": [{"batches": 2, "bytes": 10, "messages": 3, "uri": "../../etc/passwd"}]}, "CID"),
        ({"rejects": {"count": 1, "files": []}}, "'count' of 'rejects' is not the sum of"),
        ({"config": None}, "invalid manifest"),
        ({"rejects": {"count": 2_000_000, "files": [{"bytes": 9, "count": 2_000_000, "uri": cid_of(b"")}]}}, "rejects"),
    ],
)
def test_a_manifest_that_breaks_a_rule_makes_the_anchor_invalid(
    parts: Any, forge: Forge, changes: dict[str, Any], reason: str
) -> None:
    assert reason in reason_of(parts, forge.anchor(forge.manifest(GOOD, changes=changes), count=2))


@pytest.mark.parametrize("data", [b"", b"null", b"[" * 100_000, b"\xff", b"{}", b" ", b'{"a":1}' * 200_000])
def test_bytes_that_are_no_manifest_make_the_anchor_invalid(parts: Any, forge: Forge, data: bytes) -> None:
    reason = reason_of(parts, forge.anchor(data, count=2))
    assert "invalid manifest" in reason or "limit of its format" in reason


def test_a_manifest_in_another_spelling_makes_the_anchor_invalid(parts: Any, forge: Forge) -> None:
    manifest = forge.manifest(GOOD)
    assert "not in canonical form" in reason_of(parts, forge.anchor(manifest.replace(b",", b", ", 1), count=2))
    assert "not in canonical form" in reason_of(parts, forge.anchor(manifest + b"\n", count=2))


def test_a_count_that_is_not_the_manifests_makes_the_anchor_invalid(parts: Any, forge: Forge) -> None:
    assert "states 3 batches" in reason_of(parts, forge.anchor(forge.manifest(GOOD), count=3))


ONE = make_batch([1, 2])
WHOLE = ONE.header_line + b"\n" + ONE.lines
OTHER = make_batch([1, 3])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (WHOLE[:-1], "does not end with a newline"),
        (WHOLE + b"\n", "invalid header of a batch"),
        (WHOLE.replace(b'"count":2', b'"count":1'), "Merkle root"),
        (WHOLE.replace(b'"count":2', b'"count":3'), "but 2 lines follow"),
        (WHOLE.replace(b"value", b"valuE", 1), "Merkle root"),
        (WHOLE.replace(ONE.root.encode(), b"0" * 64), "Merkle root"),
        (ONE.header_line.replace(b":", b": ", 1) + b"\n" + ONE.lines, "not canonical"),
        (ONE.lines, "invalid header of a batch"),
        (b"\n", "invalid header of a batch"),
        (WHOLE + WHOLE, "contains 2 batches"),
        (WHOLE, "Merkle root in the manifest"),
    ],
)
def test_a_batch_file_that_breaks_a_rule_makes_the_anchor_invalid(
    parts: Any, forge: Forge, data: bytes, reason: str
) -> None:
    assert reason in reason_of(parts, forge.anchor_files(data, messages=2))


def test_a_message_line_in_another_spelling_makes_the_anchor_invalid(parts: Any, forge: Forge) -> None:
    line = ONE.lines.split(b"\n")[0].replace(b":", b": ", 1)
    header = msgspec.structs.replace(ONE.header, count=1, root=leaf_hash(line).hex())
    batch = EncodedBatch(header, line + b"\n", (1,))
    assert "message 1 is not canonical" in reason_of(parts, forge.anchor_files(batch.header_line + b"\n" + batch.lines))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"reason":"late","rejected":0}\n', "outside 1 to 2^53 - 1"),
        (b'{"reason":"Late!","rejected":5}\n', "invalid"),
        (b'{"rejected":5,"reason":"late"}\n', "not canonical"),
        (b'{"reason":"late","rejected":5,"x":1}\n', "not a rejected message"),
        (b'{"reason":"late","rejected":5}', "does not end with a newline"),
        (b'{"reason":"late","rejected":5}\n{"reason":"late","rejected":6}\n', "contains 2 rejected messages"),
    ],
)
def test_a_reject_file_that_breaks_a_rule_makes_the_anchor_invalid(
    parts: Any, forge: Forge, line: bytes, reason: str
) -> None:
    files = [{"bytes": len(line), "count": 1, "uri": parts.cas.put(line)}]
    manifest = forge.manifest(GOOD, changes={"rejects": {"count": 1, "files": files}})
    assert reason in reason_of(parts, forge.anchor(manifest))


def test_rejects_out_of_order_make_the_anchor_invalid(parts: Any, forge: Forge) -> None:
    assert "ascending" in reason_of(parts, forge.anchor(forge.manifest(GOOD, [(5, "late"), (4, "late")])))


def test_a_file_of_another_size_than_the_manifest_says_makes_the_anchor_invalid(parts: Any, forge: Forge) -> None:
    members = msgspec.json.decode(forge.manifest(GOOD))
    members["files"][0]["bytes"] += 1
    assert "its manifest states" in reason_of(parts, forge.anchor(canonical_json(members)))


def test_an_invalid_anchor_does_not_stop_those_after_it(parts: Any, forge: Forge) -> None:
    forge.anchor(b"nonsense", count=1)
    number = forge.anchor(forge.manifest(GOOD))
    parts.observer.observe()
    assert parts.index.anchor(number).batches == 2
    assert [what[:2] for what in parts.index.invalid()] == [(1, None)]


@pytest.mark.parametrize("damage", [flip, truncate, vanish])
@pytest.mark.parametrize("kind", ["manifest", "batches"])
def test_damage_of_the_storage_stops_the_observer_and_says_nothing_of_the_anchor(
    parts: Any, forge: Forge, kind: str, damage: Any
) -> None:
    manifest = forge.manifest(GOOD)
    forge.anchor(manifest)
    uri = cid_of(manifest) if kind == "manifest" else msgspec.json.decode(manifest)["files"][0]["uri"]
    parts.faults.spoil(uri, damage)
    with pytest.raises(ObservationBlockedError, match=f"cannot read the files of anchor 1: .*file {uri}"):
        parts.observer.observe()
    assert parts.index.anchor(1) is None
    parts.faults.put((parts.cas.root / uri).read_bytes())
    assert parts.observer.observe().position == 1
    assert parts.index.anchor(1).reason is None


def test_a_ledger_that_was_replaced_is_noticed(parts: Any, forge: Forge) -> None:
    forge.anchor(forge.manifest(GOOD))
    parts.observer.observe()
    other = MemoryLedger(VirtualClock())
    for name in (b"a", b"b"):
        other.append(anchor_string(1, cid_of(name)))
    with pytest.raises(LedgerError, match="rewritten or replaced"):
        Observer(parts.index, parts.cas, other).observe()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_without_the_last_entry_that_was_observed_is_noticed(parts: Any, forge: Forge, replaced: bool) -> None:
    for number in (1, 2, 3):
        forge.anchor(forge.manifest([make_batch([number])]))
    parts.observer.observe()
    del parts.ledger._entries[1:]  # its log was restored from a backup
    if replaced:
        for number in (4, 5):
            forge.anchor(forge.manifest([make_batch([number])]))
    reason = "entry 3 of the ledger is not the one" if replaced else "the ledger ends at entry 1, but entry 3 was obs"
    for look in (parts.observer.observe, parts.observer.check_ledger):
        with pytest.raises(LedgerReplacedError, match=f"{reason}.*Restore.*`millstream anchor observe --rebuild`"):
            look()
    assert parts.index.locate("weather", 4) is None


def test_two_observers_on_one_database_agree(parts: Any, forge: Forge) -> None:
    for number in range(4):
        forge.anchor(forge.manifest([make_batch([number * 2 + 1, number * 2 + 2])]))
    other = Observer(AnchorIndex(parts.engine), parts.cas, parts.ledger)
    assert parts.observer.observe().position == other.observe().position == 4
    assert parts.index.totals().messages == 8
