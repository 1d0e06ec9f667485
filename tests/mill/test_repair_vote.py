"""The vote, over every combination of a manifest and up to three copies."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from millstream.mill.bit_check_table import SourceAnswer
from millstream.mill.repair.vote import CopyReading, RepairAction, RepairDecision, RepairPlan, plan_repair

CONTENTS = ["a", "b", "c", SourceAnswer.MISSING, SourceAnswer.UNREADABLE, SourceAnswer.NOT_READ]
SUMS = {"a", "b", "c"}


def copies(*contents: str, source: bool = True) -> list[CopyReading]:
    """Copies with these contents in stores 0, 1 …; the first is the source. Providers recorded "a" for each."""
    return [CopyReading(str(n), content, "a", source=source and n == 0) for n, content in enumerate(contents)]


def test_a_bad_copy_is_written_from_one_that_matches_the_manifest() -> None:
    plan = plan_repair("a", copies("a", "b", "a"))
    assert plan == RepairPlan(RepairDecision.HEAL, "a", "0", (RepairAction("1", quarantine=True),))


def test_a_missing_copy_is_restored_and_leaves_nothing_to_keep() -> None:
    plan = plan_repair("a", copies("a", SourceAnswer.MISSING, "a"))
    assert plan.cures == (RepairAction("1", quarantine=False),)


def test_two_copies_that_rotted_each_in_its_own_way_are_both_healed() -> None:
    plan = plan_repair("a", copies("a", "b", "c"))
    assert [action.store for action in plan.cures] == ["1", "2"]


def test_a_rotted_source_is_healed_when_the_manifest_and_another_copy_agree() -> None:
    assert plan_repair("a", copies("b", "a")).cures == (RepairAction("0", quarantine=True),)
    assert plan_repair("a", copies(SourceAnswer.MISSING, "a")).cures == (RepairAction("0", quarantine=False),)


def test_p8_a_source_that_was_rewritten_through_its_provider_is_never_touched() -> None:
    rewritten = CopyReading("0", "b", "b", source=True)
    plan = plan_repair("a", [rewritten, CopyReading("1", "a", "a")])
    assert (plan.health, plan.cures) == (RepairDecision.REFUSE, ())
    assert "rewritten" in plan.reasons[0]


def test_p8_a_source_that_may_have_been_rewritten_is_never_touched() -> None:
    plan = plan_repair("a", [CopyReading("0", "b", SourceAnswer.NO_CHECKSUM, source=True), CopyReading("1", "a", "a")])
    assert (plan.health, plan.cures) == (RepairDecision.REFUSE, ())
    assert "has no checksum of it: it may have been rewritten" in plan.reasons[0]
    gone = CopyReading("0", SourceAnswer.MISSING, SourceAnswer.MISSING, source=True)
    assert plan_repair("a", [gone, CopyReading("1", "a", "a")]).cures == (RepairAction("0", quarantine=False),)
    copied = CopyReading("1", "b", SourceAnswer.NO_CHECKSUM)
    assert plan_repair("a", [CopyReading("0", "a", "a", source=True), copied]).cures == (
        RepairAction("1", quarantine=True),
    )


def test_p8_a_source_is_never_touched_without_the_manifest() -> None:
    plan = plan_repair(None, copies("b", "a", "a"))
    assert plan.cures == ()
    assert "the manifest does not say" in plan.reasons[0]


def test_without_a_manifest_sum_two_copies_outvote_a_third() -> None:
    assert plan_repair(None, copies("a", "b", "a", source=False)).cures == (RepairAction("1", quarantine=True),)


@pytest.mark.parametrize(
    ("manifest", "contents", "reason"),
    [
        ("a", ["b", "c"], "all disagree"),
        ("a", [SourceAnswer.MISSING], "no copy can be read"),
        ("a", ["b", "b", "b"], "against the manifest"),
        ("a", ["a", "b", "b"], "no majority"),
        (None, ["a", "b"], "all disagree"),
        (None, ["a"], "all disagree"),
        (None, [], "no copy can be read"),
    ],
)
def test_a_vote_that_nobody_wins_is_refused_with_the_reason(
    manifest: str | None, contents: list[str], reason: str
) -> None:
    plan = plan_repair(manifest, copies(*contents))
    assert (plan.health, plan.cures) == (RepairDecision.REFUSE, ())
    assert reason in plan.reasons[0]


def test_a_store_that_does_not_answer_is_left_alone() -> None:
    plan = plan_repair("a", copies("a", SourceAnswer.NOT_READ, "b"))
    assert [action.store for action in plan.cures] == ["2"]
    assert plan.reasons == ("store 1 did not answer",)


def test_over_all_combinations_a_good_copy_is_never_written_and_every_bad_one_is_explained() -> None:
    for manifest in (None, "a", "b"):
        for count in range(4):
            for contents in itertools.product(CONTENTS, repeat=count):
                check_plan(manifest, copies(*contents))


def check_plan(manifest: str | None, all_copies: list[CopyReading]) -> None:
    plan = plan_repair(manifest, all_copies)
    by_store = {copy.store: copy for copy in all_copies}
    votes = Counter(copy.content for copy in all_copies if copy.content in SUMS)
    if manifest:
        votes[manifest] += 1
    cured = [by_store[action.store] for action in plan.cures]
    if cured:
        assert plan.sha256 is not None and plan.good is not None
        assert by_store[plan.good].content == plan.sha256
        assert votes[plan.sha256] >= 2
        assert all(votes[other] < votes[plan.sha256] for other in votes if other != plan.sha256)
        assert manifest in (None, plan.sha256)
        assert all(copy.content != plan.sha256 for copy in cured)
        assert all(not copy.source or manifest for copy in cured)
    bad = [copy for copy in all_copies if plan.sha256 is None or copy.content != plan.sha256]
    assert plan.health == (
        RepairDecision.HEAL if cured else RepairDecision.REFUSE if plan.reasons else RepairDecision.HEALTHY
    )
    assert bool(plan.reasons) == (len(cured) < len(bad) or plan.sha256 is None)
