"""The vote, over every combination of own records and up to three copies."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.repair.vote import CopyReading, RepairAction, RepairDecision, RepairPlan, plan_repair

CONTENTS = ["a", "b", "c", *(SourceAnswer(one) for one in ("missing", "unreadable", "refused", "not-read"))]
A = frozenset({"a"})
NOTHING: frozenset[str] = frozenset()


def copy(store: str, content: str, provider: str = "a", *, source: bool = False, recorded: str = "a") -> CopyReading:
    """A copy in *store*; each letter of *recorded* is a sum of our own records."""
    return CopyReading(store=store, content=content, provider=provider, source=source, recorded=frozenset(recorded))


def copies(*contents: str, source: bool = True, recorded: str = "a") -> list[CopyReading]:
    """Copies with these contents in stores 0, 1 …; the first is the source. Providers recorded "a" for each."""
    return [copy(str(n), content, source=source and n == 0, recorded=recorded) for n, content in enumerate(contents)]


def test_a_bad_copy_is_written_from_one_that_matches_the_manifest() -> None:
    plan = plan_repair(copies("a", "b", "a"))
    assert plan == RepairPlan(RepairDecision.REPAIR, "a", "0", (RepairAction("1", quarantine=True),))


def test_a_missing_copy_is_restored_and_leaves_nothing_to_keep() -> None:
    plan = plan_repair(copies("a", SourceAnswer.MISSING, "a"))
    assert plan.actions == (RepairAction("1", quarantine=False),)


def test_two_copies_that_rotted_each_in_its_own_way_are_both_repaired() -> None:
    plan = plan_repair(copies("a", "b", "c"))
    assert [action.store for action in plan.actions] == ["1", "2"]


def test_a_rotted_source_is_repaired_when_the_manifest_and_another_copy_agree() -> None:
    assert plan_repair(copies("b", "a")).actions == (RepairAction("0", quarantine=True),)
    assert plan_repair(copies(SourceAnswer.MISSING, "a")).actions == (RepairAction("0", quarantine=False),)


def test_p8_a_source_that_was_rewritten_through_its_provider_is_never_touched() -> None:
    for content in ("b", "c"):  # as it was rewritten, and rotted since
        plan = plan_repair([copy("0", content, "b", source=True), copy("1", "a")])
        assert (plan.decision, plan.actions) == (RepairDecision.REFUSE, ())
        assert "rewritten" in plan.reasons[0]


def test_p8_a_source_that_may_have_been_rewritten_is_never_touched() -> None:
    plan = plan_repair([copy("0", "b", SourceAnswer.NO_CHECKSUM, source=True), copy("1", "a")])
    assert (plan.decision, plan.actions) == (RepairDecision.REFUSE, ())
    assert "has no checksum of the item, which may have been rewritten" in plan.reasons[0]
    gone = copy("0", SourceAnswer.MISSING, SourceAnswer.MISSING, source=True)
    assert plan_repair([gone, copy("1", "a")]).actions == (RepairAction("0", quarantine=False),)
    copied = copy("1", "b", SourceAnswer.NO_CHECKSUM)
    assert plan_repair([copy("0", "a", source=True), copied]).actions == (RepairAction("1", quarantine=True),)


def test_p8_a_source_is_never_touched_unless_it_is_recorded_what_it_held() -> None:
    plan = plan_repair([copy("0", "b", source=True, recorded=""), copy("1", "a"), copy("2", "a")])
    assert plan.actions == ()
    assert "the manifest has no checksum" in plan.reasons[0]


def test_copies_that_were_forged_alike_are_repaired_from_the_one_that_our_records_agree_with() -> None:
    forged = [copy(store, "b", "b") for store in ("1", "2")]
    plan = plan_repair([copy("0", "a", source=True), *forged])
    assert (plan.good, [action.store for action in plan.actions]) == ("0", ["1", "2"])
    plan = plan_repair([copy("0", "b", "b", source=True), forged[0], copy("2", "a")])
    assert (plan.good, [action.store for action in plan.actions]) == ("2", ["1"])
    assert "store 0 is the source, and the item was rewritten" in plan.reasons[0]


def test_a_damaged_row_of_the_manifest_is_outvoted_by_the_audit_log_and_the_other_records() -> None:
    plan = plan_repair([copy("0", "a", source=True), copy("1", "b", "b", recorded="ab"), copy("2", "b", "b")])
    assert [action.store for action in plan.actions] == ["1", "2"]


@pytest.mark.parametrize(
    ("recorded", "contents", "reason"),
    [
        ("a", ["b", "c"], "no copy has the recorded checksum"),
        ("a", ["b"], "no copy has the recorded checksum"),
        ("a", [SourceAnswer.MISSING], "if the item was deleted everywhere, record its deletion in every store"),
        ("a", ["b", "b", "b"], "the manifest has another checksum"),
        ("ab", ["a", "b", "b"], "manifest and audit log differ"),
        ("", ["a", "b"], "no checksum was recorded"),
        ("", ["a", "a", "b"], "no checksum was recorded"),
        ("", [], "no checksum was recorded"),
    ],
)
def test_a_vote_that_nobody_wins_is_refused_with_the_reason(recorded: str, contents: list[str], reason: str) -> None:
    plan = plan_repair(copies(*contents, recorded=recorded))
    assert (plan.decision, plan.actions) == (RepairDecision.REFUSE, ())
    assert reason in plan.reasons[0]


def test_a_change_that_is_recorded_at_one_store_only_is_duplicated_and_not_voted_on() -> None:
    plan = plan_repair([copy("0", "b", "b", source=True, recorded="b"), copy("1", "a"), copy("2", "a")])
    assert (plan.actions, plan.reasons) == (
        (), ("the manifest has different checksums for the copies: run `millstream mill duplicate` first",)
    )  # fmt: skip


def test_a_copy_whose_own_record_is_damaged_is_written_again_and_a_source_is_not() -> None:
    damaged = ("1", SourceAnswer.NOT_READ, SourceAnswer.DAMAGED_RECORD)
    assert plan_repair([copy("0", "a"), copy(*damaged)]).actions == (RepairAction("1", quarantine=True),)
    plan = plan_repair([copy("0", "a"), copy(*damaged, source=True)], restore_source=True)
    assert plan.actions == (RepairAction("1", quarantine=True),)
    plan = plan_repair([copy("0", "a"), copy(*damaged, source=True)])
    assert (plan.actions, "its own record of the item is damaged" in plan.reasons[0]) == ((), True)


def test_good_bytes_beside_a_damaged_record_are_written_again_where_no_other_copy_is_whole() -> None:
    damaged = [copy(store, "a", SourceAnswer.DAMAGED_RECORD) for store in ("1", "2")]
    plan = plan_repair([copy("0", "b", source=True), *damaged])
    assert (plan.good, plan.actions[1:]) == ("1", (RepairAction("1", quarantine=False), RepairAction("2", False)))
    assert plan_repair([copy("0", "a", source=True), *damaged]).good == "0"


def test_good_bytes_beside_a_wrong_checksum_that_we_keep_ourselves_are_written_again_and_a_source_is_not() -> None:
    wrong = CopyReading(store="1", content="a", provider="b", own_record=True, recorded=A)
    again = (RepairAction("1", quarantine=False),)
    plan = plan_repair([copy("0", "a", source=True), wrong])
    assert plan == RepairPlan(RepairDecision.REPAIR, "a", "0", again)
    assert (plan_repair([wrong]).good, plan_repair([wrong]).actions) == ("1", again)
    source = msgspec.structs.replace(wrong, source=True)
    plan = plan_repair([source, copy("2", "a")])
    assert (plan.actions, "its own record of the item is damaged" in plan.reasons[0]) == ((), True)
    assert plan_repair([source, copy("2", "a")], restore_source=True).actions == again
    for other in ({"own_record": False}, {"recorded": A | frozenset("b")}):
        not_alone = msgspec.structs.replace(wrong, **other)
        assert plan_repair([copy("0", "a", source=True), not_alone]).decision == RepairDecision.HEALTHY


def test_a_source_that_other_programs_have_changed_is_not_written() -> None:
    plan = plan_repair([copy("0", SourceAnswer.CHANGED, source=True), copy("1", "a")], restore_source=True)
    assert (plan.actions, "changed since it was adopted" in plan.reasons[0]) == ((), True)


def test_a_store_that_does_not_answer_is_left_alone() -> None:
    plan = plan_repair(copies("a", SourceAnswer.NOT_READ, "b"))
    assert [action.store for action in plan.actions] == ["2"]
    assert plan.reasons == ("store 1 did not answer: make the store available, then repair the item again",)


def test_content_that_a_store_does_not_give_out_is_not_written_over_by_anyone() -> None:
    for kept in (copy("1", SourceAnswer.REFUSED), copy("1", SourceAnswer.REFUSED, SourceAnswer.DAMAGED_RECORD)):
        for one in (kept, msgspec.structs.replace(kept, source=True)):
            plan = plan_repair([copy("0", "a"), one], restore_source=True)
            assert (plan.actions, "store 1 does not give out the content" in plan.reasons[0]) == ((), True)


def test_p8_a_source_whose_content_cannot_be_read_is_written_only_if_a_person_asks() -> None:
    unreadable = copies(SourceAnswer.UNREADABLE, "a")
    plan = plan_repair(unreadable)
    assert (plan.actions, "its content cannot be read" in plan.reasons[0]) == ((), True)
    written = (RepairAction("0", quarantine=True),)
    assert plan_repair(unreadable, restore_source=True).actions == written
    assert plan_repair(copies(SourceAnswer.UNREADABLE, "a", source=False)).actions == written


def test_over_all_combinations_a_good_copy_is_never_written_and_every_bad_one_is_explained() -> None:
    for recorded in ("", "a", "b", "ab"):
        for count in range(4):
            for contents in itertools.product(CONTENTS, repeat=count):
                check_plan(copies(*contents, recorded=recorded))


records = st.sampled_from([NOTHING, A, A, A, frozenset("b"), frozenset("ab")])
readings = st.builds(
    CopyReading,
    store=st.just(""),
    content=st.sampled_from(CONTENTS),
    provider=st.sampled_from(["a", "b", "c", *SourceAnswer]),
    source=st.booleans(),
    recorded=records,
    own_record=st.booleans(),
)


@given(st.lists(readings, max_size=5))
def test_bytes_are_chosen_by_our_own_records_alone_and_never_by_what_stands_beside_a_copy(
    drawn: list[CopyReading],
) -> None:
    numbered = [msgspec.structs.replace(one, store=str(number)) for number, one in enumerate(drawn)]
    check_plan(numbered)
    forged = [msgspec.structs.replace(one, provider="b") for one in numbered]
    assert plan_repair(forged).sha256 == plan_repair(numbered).sha256


def has_damaged_record(one: CopyReading) -> bool:
    wrong = one.own_record and one.provider not in {one.content, *SourceAnswer} and one.recorded <= {one.content}
    return one.provider == SourceAnswer.DAMAGED_RECORD or wrong


def check_plan(all_copies: list[CopyReading]) -> None:
    plan = plan_repair(all_copies)
    by_store = {one.store: one for one in all_copies}
    recorded = [one.recorded for one in all_copies if one.recorded]
    agreed = frozenset.intersection(*recorded) if recorded else NOTHING
    backed = [one for one in all_copies if one.content in agreed]
    assert (plan.sha256 is not None) == (len(agreed) == 1 and bool(backed))
    assert plan.sha256 is None or {plan.sha256} == agreed
    repaired = [by_store[action.store] for action in plan.actions]
    if repaired:
        assert plan.good is not None
        assert by_store[plan.good].content == plan.sha256
        assert all(one.content != plan.sha256 or has_damaged_record(one) for one in repaired)
        assert all(one.recorded and one.provider in {plan.sha256, *SourceAnswer} for one in repaired if one.source)
    bad = [one for one in all_copies if one.content != plan.sha256 or has_damaged_record(one) or plan.sha256 is None]
    assert plan.decision == (
        RepairDecision.REPAIR if repaired else RepairDecision.REFUSE if plan.reasons else RepairDecision.HEALTHY
    )
    assert bool(plan.reasons) == (len(repaired) < len(bad) or plan.sha256 is None)
