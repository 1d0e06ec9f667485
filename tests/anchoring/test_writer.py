from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millstream.anchoring import BatchState, BatchStatus, CutLimits, MemoryLedger
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.content import read_anchor
from millstream.anchoring.errors import (
    AnchoringError,
    BatchFormatError,
    CasUnavailableError,
    JournalBusyError,
    LedgerReplacedError,
    ObservationBlockedError,
    ObservationDelayedError,
)
from millstream.anchoring.observer import observe_entry
from millstream.batching import Reject
from millstream.core.clock import VirtualClock
from millstream.testing.batches import CONFIG, make_batch, make_batches, make_rejects
from support.statement_counts import statements_of


def add(parts: Any, batches: list[EncodedBatch], rejects: Any = (), log: str = "weather", config: Any = CONFIG) -> Any:
    return parts.writer.add(log, batches, rejects, config=config)


def test_batches_travel_from_accepted_to_observed(parts: Any) -> None:
    batches = list(make_batches(5))
    assert add(parts, batches).batches == 5
    assert parts.journal.status("weather", batches[0].batch) == BatchStatus(BatchState.ACCEPTED)
    assert parts.writer.cut() == []
    (entry,) = parts.writer.cut(force=True)
    assert entry.anchor_string.startswith("5.")
    assert parts.journal.status("weather", batches[0].batch) == BatchStatus(BatchState.OBSERVED, 1)
    assert parts.journal.status("weather", "unknown") is None
    content = read_anchor(parts.cas, entry.anchor_string)
    assert {batch: tuple(ids) for batch, ids in content.batches.members.each()} == {
        each.batch: each.ids for each in batches
    }
    assert content.manifest.log == "weather"
    assert content.manifest.config == CONFIG


def test_nothing_to_cut_makes_no_anchor(parts: Any) -> None:
    assert parts.writer.cut(force=True) == []
    add(parts, [], make_rejects([1, 2]))
    assert parts.writer.cut(force=True) == []
    assert parts.journal.totals().waiting_rejects == 2


def test_cuts_are_full_at_the_limit_of_batches(make_parts: Any) -> None:
    parts = make_parts(limits=CutLimits(batches=4))
    add(parts, list(make_batches(10)))
    assert [entry.anchor_string.split(".")[0] for entry in parts.writer.cut()] == ["4", "4"]
    assert parts.journal.totals().accepted == 2
    assert [entry.anchor_string.split(".")[0] for entry in parts.writer.cut(force=True)] == ["2"]


def test_cuts_are_full_at_the_limit_of_bytes_and_files_stay_below_theirs(make_parts: Any) -> None:
    parts = make_parts(limits=CutLimits(file_bytes=2500, cut_bytes=6000))
    add(parts, list(make_batches(30)))
    entries = parts.writer.cut(force=True)
    contents = [read_anchor(parts.cas, entry.anchor_string).manifest for entry in entries]
    assert len(entries) > 2
    assert sum(manifest.count for manifest in contents) == 30
    for manifest in contents:
        assert sum(file.bytes for file in manifest.files) <= 6000
        assert all(file.bytes <= 2500 for file in manifest.files)


def test_a_batch_known_in_any_state_is_not_added_again(parts: Any) -> None:
    batches = list(make_batches(4))
    add(parts, batches[:2])
    assert (add(parts, batches[:3]).batches, add(parts, batches).known) == (1, 3)
    parts.writer.cut(force=True)
    again = add(parts, [*batches, batches[0]])
    assert (again.batches, again.known) == (0, 5)
    assert parts.writer.cut(force=True) == []
    assert len(parts.anchor_strings()) == 1


def test_the_same_batch_id_with_other_messages_is_named_and_the_first_one_holds(parts: Any) -> None:
    first, other = make_batch([1, 2], name="same"), make_batch([3, 4], name="same")
    assert add(parts, [first]).conflicting == ()
    added = add(parts, [other, make_batch([9])])
    assert (added.conflicting, added.batches, added.known) == (("same",), 1, 0)
    assert add(parts, [make_batch([20], name="twin"), make_batch([21], name="twin")]).conflicting == ("twin",)
    parts.writer.cut(force=True)
    assert parts.index.locate("weather", 1) is not None
    assert parts.index.locate("weather", 20) is not None
    assert parts.index.locate("weather", 3) is None


def test_rejects_travel_with_the_next_batch_of_their_log(parts: Any) -> None:
    add(parts, [], [Reject(7, "late")])
    add(parts, [make_batch([1])], log="other")
    parts.writer.cut(force=True)
    assert parts.index.reject_reason("weather", 7) is None
    add(parts, [make_batch([2])], [Reject(5, "duplicate"), Reject(7, "late")])
    parts.writer.cut(force=True)
    assert parts.index.reject_reason("weather", 7) == (2, "late")
    assert parts.index.reject_reason("weather", 5) == (2, "duplicate")
    assert parts.index.reject_reason("weather", 6) is None
    assert add(parts, [], [Reject(7, "late")]).rejects == 0
    assert parts.journal.totals().waiting_rejects == 0


def test_rejects_are_not_anchored_again_after_the_database_was_lost(make_parts: Any) -> None:
    before = make_parts()
    add(before, list(make_batches(3)), make_rejects([900, 901]))
    before.writer.cut(force=True)
    before.engine.dispose()
    (before.folder / "node.db").unlink()

    parts = make_parts(ledger=before.ledger)
    add(parts, [*make_batches(3), make_batch([50])], make_rejects([900, 901, 902]))
    parts.writer.cut(force=True)
    assert parts.index.totals().rejects == 3
    assert parts.index.rejected("weather", [902, 1, 900]) == [900, 902]
    assert parts.journal.totals().waiting_rejects == 0


def test_rejects_are_dropped_a_thousand_at_a_time_by_their_keys(parts: Any) -> None:
    add(parts, [], make_rejects(range(1, 2_501)))
    with statements_of(parts.engine) as statements:
        parts.journal.drop_rejects("weather", range(2_400, 0, -1))
    deletes = [text for text in statements if text.startswith("DELETE")]
    assert [text.count("?") for text in deletes] == [1_001, 1_001, 401]
    assert parts.journal.totals().waiting_rejects == 100


def test_the_rejects_of_an_anchor_are_read_only_where_they_may_be_among_those_asked_for(parts: Any) -> None:
    for number, ids in enumerate(([900, 902], [905], [1_000, 1_001])):
        add(parts, [make_batch([number + 1])], make_rejects(ids))
        parts.writer.cut(force=True)
    assert parts.index.rejected("weather", [901, 903, 999, 1_001, 5_000]) == [1_001]
    with statements_of(parts.engine) as statements:
        assert parts.index.rejected("weather", [899, 903, 1_002]) == []
        assert parts.index.rejected("other", [900]) == []
    assert not any("SELECT anchor_index_anchors.reject_ids" in text for text in statements)
    add(parts, [make_batch([9])], make_rejects([2_000]))
    parts.writer.cut(force=True)
    assert parts.index.rejected("weather", [902, 2_000]) == [902, 2_000]


def test_logs_and_configurations_do_not_share_a_manifest(parts: Any) -> None:
    add(parts, [make_batch([1])])
    add(parts, [make_batch([1])], log="flights")
    add(parts, [make_batch([2])], config={"window": 1})
    manifests = [read_anchor(parts.cas, entry.anchor_string).manifest for entry in parts.writer.cut(force=True)]
    assert sorted((each.log, each.config["window"]) for each in manifests) == [
        ("flights", 60),
        ("weather", 1),
        ("weather", 60),
    ]


def test_p5_the_same_batches_give_the_same_anchors_in_whatever_order_they_are_added(make_parts: Any) -> None:
    batches, rejects = list(make_batches(40)), make_rejects(range(900, 950))
    one, other = make_parts("one"), make_parts("other")
    add(one, batches, rejects)
    mixed = random.Random(3).sample(batches, 40)
    add(other, mixed[:10], rejects[40:])
    add(other, mixed[10:], rejects[:40])
    one.writer.cut(force=True)
    other.writer.cut(force=True)
    assert one.anchor_strings() == other.anchor_strings()
    assert list(one.cas.cids()) == list(other.cas.cids())


def test_p5_full_cuts_do_not_depend_on_when_they_are_asked_for(make_parts: Any) -> None:
    batches = list(make_batches(40))
    strings = []
    for name, step in (("often", 4), ("some", 7), ("once", 40)):
        parts = make_parts(name, limits=CutLimits(batches=9))
        for start in range(0, 40, step):
            for number in range(start, min(40, start + step)):
                add(parts, [batches[number]], make_rejects([900 + number]))
            parts.writer.cut()
        parts.writer.cut(force=True)
        strings.append(parts.anchor_strings())
    assert strings[0] == strings[1] == strings[2]
    assert len(strings[0]) == 5


def test_p6_a_batch_too_large_for_a_file_is_rejected_and_the_others_go_on(make_parts: Any) -> None:
    parts = make_parts(limits=CutLimits(file_bytes=1000))
    large = make_batch(list(range(1, 12)))
    add(parts, [make_batch([20]), large, make_batch([21])])
    (entry,) = parts.writer.cut(force=True)
    assert entry.anchor_string.startswith("2.")
    status = parts.journal.status("weather", large.batch)
    assert status.state == BatchState.REJECTED
    assert "the limit of a batch file is 1,000" in status.reason
    assert parts.journal.rejected() == [("weather", large.batch, status.reason)]


def test_p6_a_batch_with_a_message_anchored_before_is_rejected_with_that_reason(parts: Any) -> None:
    add(parts, [make_batch([1, 2])])
    parts.writer.cut(force=True)
    grown, fresh = make_batch([2, 3, 4]), make_batch([5, 6])
    add(parts, [grown, fresh, make_batch([6, 7])])
    parts.writer.cut(force=True)
    reason = "message 2 is already in a batch of anchor 1"
    assert parts.journal.status("weather", grown.batch) == BatchStatus(BatchState.REJECTED, None, reason)
    totals = parts.journal.totals()
    assert (totals.observed, totals.rejected) == (2, 2)
    assert parts.replay().findings == ()


def test_p6_every_batch_ends_in_a_state_that_adds_up(make_parts: Any) -> None:
    parts, draw = make_parts(limits=CutLimits(batches=6, file_bytes=3000)), random.Random(5)
    batches = [make_batch(draw.sample(range(1, 400), draw.randint(1, 11)), hour=hour) for hour in range(60)]
    for start in range(0, 60, 5):
        add(parts, batches[start : start + 5])
        parts.writer.cut(force=draw.random() < 0.3)
    parts.writer.cut(force=True)
    totals, observed = parts.journal.totals(), parts.index.totals()
    assert totals.observed + totals.rejected == 60
    assert (observed.batches, observed.invalid_batches) == (totals.observed, 0)
    assert totals.rejected == len(parts.journal.rejected()) > 0
    assert parts.replay().findings == ()


@pytest.mark.parametrize("change", ["lines", "ids", "count", "root", "short"])
def test_a_batch_that_does_not_hold_what_it_says_is_refused_before_anything_is_added(parts: Any, change: str) -> None:
    good = make_batch([1, 2, 3])
    lines = good.lines.split(b"\n")
    bad = {
        "lines": msgspec.structs.replace(good, lines=good.lines.replace(b"value", b"valuE", 1)),
        "ids": msgspec.structs.replace(good, ids=(1, 2, 4)),
        "count": msgspec.structs.replace(good, header=msgspec.structs.replace(good.header, count=2)),
        "root": msgspec.structs.replace(good, header=msgspec.structs.replace(good.header, root="0" * 64)),
        "short": msgspec.structs.replace(good, lines=b"\n".join(lines[:-1])),
    }[change]
    with pytest.raises(BatchFormatError):
        add(parts, [make_batch([9]), bad])
    assert parts.journal.totals().accepted == 0


def test_a_reason_that_no_reject_file_may_hold_is_refused(parts: Any) -> None:
    with pytest.raises(BatchFormatError, match="invalid reject reason"):
        add(parts, [make_batch([1])], [Reject(5, "Too late!")])  # type: ignore[arg-type]
    assert parts.journal.totals().accepted == 0


def test_a_configuration_too_long_for_a_manifest_is_refused(parts: Any) -> None:
    with pytest.raises(BatchFormatError, match="200,008 characters; the limit is"):
        add(parts, [make_batch([1])], config={"x": "y" * 200_000})
    assert parts.journal.totals().accepted == 0


def test_p6_a_batch_is_not_rejected_for_a_message_of_one_that_is_too_large_itself(make_parts: Any) -> None:
    parts = make_parts(limits=CutLimits(file_bytes=1000))
    large, small = make_batch(list(range(1, 12))), make_batch([1, 2])
    add(parts, [large, small])
    parts.writer.cut(force=True)
    assert parts.journal.status("weather", small.batch).state == BatchState.OBSERVED
    assert parts.journal.status("weather", large.batch).state == BatchState.REJECTED


def test_p7_a_storage_that_fails_once_costs_nothing(parts: Any) -> None:
    add(parts, list(make_batches(3)))
    parts.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        parts.writer.cut(force=True)
    assert parts.journal.totals().cut == 3
    assert parts.anchor_strings() == []
    assert len(parts.writer.cut()) == 1
    assert parts.journal.totals().observed == 3


def test_p7_a_cut_whose_anchor_is_in_the_ledger_is_not_anchored_again(make_parts: Any) -> None:
    ledger = MemoryLedger(VirtualClock())
    parts = make_parts(ledger=ledger)
    add(parts, list(make_batches(3)))
    parts.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        parts.writer.cut(force=True)
    (cut,) = parts.journal.open_cuts()
    anchored = ledger.append(cut.anchor_string)  # as if the writer had died right after it
    again = make_parts(ledger=ledger)
    assert again.writer.recover() == [anchored]
    assert len(again.anchor_strings()) == 1
    assert again.journal.totals().observed == 3


def test_p7_a_lost_journal_leads_to_no_second_anchor(make_parts: Any) -> None:
    ledger, batches = MemoryLedger(VirtualClock()), list(make_batches(6))
    parts = make_parts("node", ledger)
    add(parts, batches)
    parts.writer.cut(force=True)
    (parts.folder / "node.db").unlink()
    again = make_parts("node", ledger)
    add(again, batches)
    assert again.writer.cut(force=True) == []
    assert "already" in again.journal.status("weather", batches[0].batch).reason
    assert len(again.anchor_strings()) == 1


def test_a_file_that_was_never_written_is_written_again_before_the_batch_is_forgotten(parts: Any) -> None:
    add(parts, list(make_batches(3)))
    parts.faults.lose_writes = True
    with pytest.raises(ObservationBlockedError, match="no file bafkrei"):
        parts.writer.cut(force=True)
    assert parts.journal.totals().anchored == 3
    parts.faults.lose_writes = False
    assert len(parts.writer.recover()) == 1
    assert len(parts.anchor_strings()) == 1
    assert parts.replay().findings == ()


def test_nothing_is_anchored_by_a_ledger_that_lost_entries_until_it_is_read_again(parts: Any) -> None:
    batches = [make_batch([number]) for number in range(1, 7)]
    for batch in batches[:3]:
        add(parts, [batch], make_rejects([900 + batch.ids[0]]))
        parts.writer.cut(force=True)
    add(parts, [batches[3]], make_rejects([904]))
    parts.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        parts.writer.cut(force=True)
    add(parts, [batches[4]])
    del parts.ledger._entries[1:]  # the log of the ledger was restored from a backup
    for step in (parts.writer.recover, parts.writer.cut):
        with pytest.raises(LedgerReplacedError, match="ends at entry 1, but entry 3 was observed before"):
            step()
    assert len(parts.anchor_strings()) == 1
    assert parts.writer.rebuild().position == 1
    totals = parts.journal.totals()
    assert (totals.accepted, totals.observed, totals.waiting_rejects) == (2, 0, 1)
    assert add(parts, batches, make_rejects(range(901, 905))).batches == 4  # the log of batches is read again
    parts.writer.cut(force=True)
    assert [parts.index.locate("weather", number) is None for number in range(1, 8)] == [False] * 6 + [True]
    assert [parts.index.reject_reason("weather", number)[0] for number in range(901, 905)] == [1, 2, 2, 2]
    assert parts.index.totals().rejects == 4
    assert "already" in parts.journal.status("weather", batches[0].batch).reason
    assert parts.replay().findings == ()
    assert parts.writer.rebuild().entries == 0
    assert parts.journal.totals().observed == 5


def test_two_writers_on_one_journal_never_share_a_batch(make_parts: Any) -> None:
    ledger = MemoryLedger(VirtualClock())
    one, other = make_parts("node", ledger), make_parts("node", ledger)
    add(one, list(make_batches(4)))
    (stream,) = one.journal.streams()
    plan = one.writer._plan(stream, True)
    assert len(other.writer.cut(force=True)) == 1
    with pytest.raises(JournalBusyError):
        one.journal.prepare(plan)
    assert one.writer.cut(force=True) == []
    assert one.index.totals().batches == 4


def test_a_batch_that_another_process_has_cut_is_not_rejected_and_keeps_its_payload(make_parts: Any) -> None:
    ledger, batches = MemoryLedger(VirtualClock()), [make_batch([1]), make_batch([2])]
    one, other = make_parts("node", ledger), make_parts("node", ledger)
    add(one, batches)
    (stream,) = one.journal.streams()
    candidates = one.journal.candidates(stream, 2)
    other.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        other.writer.cut(force=True)
    add(one, [make_batch([3])])
    (waiting,) = one.journal.candidates(stream, 2)
    one.journal.reject({each.seq: "too many bytes" for each in (*candidates, waiting)})
    assert len(one.writer.recover()) == 1
    assert [one.journal.status("weather", each.batch) for each in batches] == [BatchStatus(BatchState.OBSERVED, 1)] * 2
    assert one.journal.rejected() == [("weather", waiting.batch, "too many bytes")]
    assert one.journal.batch_of("weather", 3) == waiting.batch


def test_an_anchor_is_read_later_where_storage_does_not_answer(parts: Any) -> None:
    add(parts, list(make_batches(3)))
    parts.writer.cut(force=True)
    (entry,) = parts.ledger.entries()
    parts.faults.fail_next()
    with pytest.raises(ObservationDelayedError, match="cannot read the files of anchor 1"):
        observe_entry(parts.index, parts.faults, entry)


def test_a_journal_changed_from_outside_is_noticed_before_anything_is_anchored(parts: Any) -> None:
    add(parts, list(make_batches(3)))
    parts.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        parts.writer.cut(force=True)
    with parts.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE anchor_payloads SET lines = CAST(replace(lines, 'value', 'walue') AS BLOB)")
    with pytest.raises(AnchoringError, match="another program changed"):
        parts.writer.recover()
    assert parts.anchor_strings() == []


@pytest.mark.parametrize(
    "limits", [{"batches": 10_001}, {"file_bytes": 4_000_001}, {"cut_bytes": 10**9}, {"rejects": 10**7}, {"batches": 0}]
)
def test_limits_beyond_the_format_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(BatchFormatError, match="of an anchor must be 1 to"):
        CutLimits(**limits)


def test_more_rejects_than_an_anchor_takes_travel_with_later_ones(make_parts: Any) -> None:
    parts = make_parts(limits=CutLimits(rejects=3))
    add(parts, [make_batch([1])], make_rejects(range(900, 908)))
    for number in (2, 3, 4):
        parts.writer.cut(force=True)
        add(parts, [make_batch([number])])
    parts.writer.cut(force=True)
    assert [parts.index.anchor(number).rejects for number in (1, 2, 3, 4)] == [3, 3, 2, 0]
    assert parts.index.reject_reason("weather", 907) == (3, "late")


def test_two_processes_that_race_to_one_cut_finish_it_once(make_parts: Any) -> None:
    ledger = MemoryLedger(VirtualClock())
    one, other = make_parts("node", ledger), make_parts("node", ledger)
    add(one, list(make_batches(4)))
    one.faults.fail_next()
    with pytest.raises(CasUnavailableError):
        one.writer.cut(force=True)
    (cut,) = one.journal.open_cuts()
    assert len(other.writer.recover()) == 1
    with pytest.raises(JournalBusyError):
        one.writer._finish(cut)
    assert len(one.anchor_strings()) == 1
    assert one.journal.totals().observed == 4
