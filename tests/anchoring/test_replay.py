"""Whatever is damaged after it was anchored, a replay finds, and names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.anchoring import CutLimits, MemoryLedger, replay
from millstream.anchoring.content import read_manifest
from millstream.anchoring.ledger import next_entry
from millstream.core.cid import cid_of
from millstream.core.clock import VirtualClock
from millstream.testing.batches import CONFIG, make_batches, make_rejects


@pytest.fixture
def anchored(make_parts: Any) -> Any:
    """Anchoring with three anchors of several batch files each, and with rejects."""
    parts = make_parts(limits=CutLimits(batches=8, file_bytes=4000))
    parts.writer.add("weather", list(make_batches(20)), make_rejects(range(900, 960)), config=CONFIG)
    parts.writer.cut(force=True)
    assert len(parts.anchor_strings()) == 3
    return parts


def files_of(parts: Any, number: int, kind: str) -> list[str]:
    cid, manifest = read_manifest(parts.cas, parts.anchor_strings()[number - 1])
    kinds = {"manifest": [cid], "batches": manifest.files, "rejects": manifest.rejects.files}
    return [getattr(file, "uri", file) for file in kinds[kind]]


def flip(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 4]) + data[51:]


DAMAGES = {
    "flip": flip,
    "flip the last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "truncate": lambda data: data[:-1],
    "empty": lambda data: b"",
    "extend": lambda data: data + b"\n",
    "delete": lambda data: None,
}


def test_what_is_whole_has_no_findings(anchored: Any) -> None:
    result = anchored.replay()
    assert (result.anchors, result.findings) == (3, ())
    assert result.files == len(list(anchored.cas.cids()))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["manifest", "batches", "rejects"])
def test_damage_of_any_file_is_found_and_named(anchored: Any, kind: str, damage: str) -> None:
    number = 3 if kind == "rejects" else 2
    uri = files_of(anchored, number, kind)[-1]
    path = anchored.cas.root / uri
    damaged = DAMAGES[damage](path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    findings = anchored.replay().findings
    assert {(finding.what, finding.number, finding.cid) for finding in findings} == {("file", number, uri)}
    assert ("no file" if damaged is None else "is damaged") in findings[0].reason


@pytest.mark.parametrize("kind", ["manifest", "batches"])
def test_two_files_swapped_are_both_found(anchored: Any, kind: str) -> None:
    one, other = (files_of(anchored, number, kind)[0] for number in (1, 2))
    first, second = ((anchored.cas.root / uri).read_bytes() for uri in (one, other))
    (anchored.cas.root / one).write_bytes(second)
    (anchored.cas.root / other).write_bytes(first)
    assert {(finding.number, finding.cid) for finding in anchored.replay().findings} == {(1, one), (2, other)}


def test_every_damaged_file_is_found_at_once(anchored: Any) -> None:
    uris = list(anchored.cas.cids())
    for uri in uris:
        if uri not in [files_of(anchored, number, "manifest")[0] for number in (1, 2, 3)]:
            (anchored.cas.root / uri).write_bytes(b"gone")
    assert len({finding.cid for finding in anchored.replay().findings}) == len(uris) - 3


def test_a_damaged_file_that_no_anchor_names_is_found_too(anchored: Any) -> None:
    stray = anchored.cas.put(b"a file of a cut that is under way")
    assert anchored.replay().findings == ()
    (anchored.cas.root / stray).write_bytes(b"something else")
    (finding,) = anchored.replay().findings
    assert (finding.what, finding.number, finding.cid) == ("file", None, stray)


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("DELETE FROM anchor_index_anchors WHERE number = 2", 2),
        ("DELETE FROM anchor_index_pages WHERE run = 2", 2),
        ("DELETE FROM anchor_index_runs WHERE run = 1", 1),
        ("UPDATE anchor_index_pages SET places = zeroblob(length(places)) WHERE run = 3", 3),
        ("UPDATE anchor_index_anchors SET members = (SELECT members FROM anchor_index_anchors WHERE number = 2) "
         "WHERE number = 1", 1),
        ("INSERT INTO anchor_index_batches VALUES (3, 0, 'weather', 'a batch', 'a file', 0, 1, 'no')", 3),
        ("UPDATE anchor_index_anchors SET reason = 'no' WHERE number = 1", 1),
        ("UPDATE anchor_index_anchors SET ids = substr(ids, 9) WHERE number = 2", 2),
        ("UPDATE anchor_index_anchors SET reject_reasons = '' WHERE number = 3", 3),
        ("INSERT INTO anchor_index_batches VALUES (9, 0, 'weather', 'a batch', 'a file', 0, 1, NULL)", 9),
    ],
)  # fmt: skip
def test_rows_of_the_index_that_are_missing_extra_or_wrong_are_found(
    anchored: Any, statement: str, number: int
) -> None:
    with anchored.engine.begin() as connection:
        assert connection.exec_driver_sql(statement).rowcount >= 1
    assert {(finding.what, finding.number) for finding in anchored.replay().findings} == {("index", number)}


def ledger_of(entries: list[Any]) -> MemoryLedger:
    ledger = MemoryLedger(VirtualClock())
    ledger._entries = entries
    return ledger


def test_a_ledger_entry_changed_removed_or_added_is_found(anchored: Any) -> None:
    entries = list(anchored.ledger.entries())
    changed = msgspec.structs.replace(entries[1], time=entries[1].time + 1)
    for broken, at in (
        ([entries[0], changed, entries[2]], 2),
        ([entries[0], entries[2]], 2),
        ([entries[1], entries[2]], 1),
    ):
        findings = replay(anchored.cas, ledger_of(broken), anchored.index).findings
        assert [(finding.what, finding.number) for finding in findings] == [("ledger", at)]


def test_a_shorter_ledger_is_found_by_the_index(anchored: Any) -> None:
    entries = list(anchored.ledger.entries())
    findings = replay(anchored.cas, ledger_of(entries[:2]), anchored.index).findings
    assert [(finding.what, finding.number) for finding in findings] == [("index", 3)]
    assert "not in the ledger" in findings[0].reason


def test_an_anchor_nobody_observed_is_found(anchored: Any) -> None:
    entries = list(anchored.ledger.entries())
    extra = next_entry(entries[-1], f"1.{cid_of(b'nothing')}", entries[-1].time)
    findings = replay(anchored.cas, ledger_of([*entries, extra]), anchored.index).findings
    assert [(finding.what, finding.number, finding.cid) for finding in findings] == [("file", 4, cid_of(b"nothing"))]


def test_p7_a_reader_that_replays_the_anchors_gets_the_same_index(anchored: Any, make_parts: Any) -> None:
    reader = make_parts("reader", ledger=anchored.ledger)
    reader.cas.put_many((anchored.cas.root / uri).read_bytes() for uri in anchored.cas.cids())
    reader.observer.observe()
    assert [reader.index.rows(number) for number in (1, 2, 3)] == [anchored.index.rows(number) for number in (1, 2, 3)]
    assert reader.replay().findings == ()
