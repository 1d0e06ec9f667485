"""The bit check table: every row by name, and the whole input space."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest

from millstream.mill.integrity_decision import (
    FRESH_MICROSECONDS,
    LAST_ATTEMPT,
    RETRY_DELAY,
    BitCheckOutcome,
    CheckVerdict,
    FollowUp,
    ManifestAction,
    Observation,
    SourceAnswer,
    canonical_observation,
    decide_bit_check,
    is_fresh,
)
from millstream.mill.integrity_outcomes import ROWS

A, B, C, D = (letter * 64 for letter in "abcd")
NO = SourceAnswer
PENULTIMATE = LAST_ATTEMPT - 1


def whole_space() -> list[Observation]:
    """Every combination of what the sources can say, with real sums."""
    axes = (
        [(None, False), (None, True), (A, False), (A, True)],
        [A, B, NO.MISSING, NO.NO_CHECKSUM, NO.UNREACHABLE, NO.DAMAGED_RECORD, NO.LEFT_OUT],
        [A, B, C, NO.MISSING, NO.UNREADABLE, NO.REFUSED, NO.NOT_READ, NO.CHANGED],
        [NO.NOT_KEPT, None, A, B, C, D],
        range(1, LAST_ATTEMPT + 1),
        [False, True],
        [
            (False, False, False),
            (True, False, False),
            (False, True, False),
            (True, True, False),
            (False, False, True),
            (True, False, False, True),
        ],
    )
    return [
        Observation(manifest, store, content, deleted, audit, attempt, fresh, *others)
        for (manifest, deleted), store, content, audit, attempt, fresh, others in itertools.product(*axes)
    ]


EVERYTHING = whole_space()
BY_TWO_STORES = {"B28", "B29"}
"""Rows that compare two stores: no outcome of this table."""


def seen(manifest: str | None, store: str, content: str, **more: object) -> Observation:
    return Observation(manifest, store, content, **more)  # type: ignore[arg-type]


REFERENCE = [
    # row, observation, verdict, manifest action, follow-up
    ("B1", seen(A, A, A, attempt=1), CheckVerdict.SUCCESS, ManifestAction.KEEP, FollowUp.NONE),
    ("B2", seen(A, A, NO.NOT_READ), CheckVerdict.SUCCESS, ManifestAction.KEEP, FollowUp.NONE),
    ("B3", seen(A, A, B, attempt=1), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B3", seen(A, A, B, elsewhere=True, fresh=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B3V", seen(A, A, NO.MISSING, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B3V", seen(A, A, NO.MISSING), CheckVerdict.FAILURE, ManifestAction.MARK_MISSING, FollowUp.BIT_ERROR),
    ("B3V", seen(None, A, NO.MISSING), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    ("B4", seen(A, A, NO.UNREADABLE, attempt=2), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B4", seen(A, A, NO.UNREADABLE), CheckVerdict.ERROR, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (
        "B4",
        seen(A, A, NO.UNREADABLE, attempt=2, elsewhere=True),
        CheckVerdict.RETRY,
        ManifestAction.KEEP,
        FollowUp.NONE,
    ),
    ("B4", seen(A, A, NO.UNREADABLE, elsewhere=True), CheckVerdict.ERROR, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B5", seen(A, B, A, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B6", seen(A, B, A, attempt=PENULTIMATE), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B7", seen(A, B, A), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B6", seen(A, B, A, attempt=PENULTIMATE, own_record=True), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B27", seen(A, B, A, own_record=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B27", seen(A, B, A, own_record=True, elsewhere=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B7", seen(A, B, A, own_record=True, audit=B), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B8", seen(A, B, B, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B8", seen(A, B, NO.NOT_READ, attempt=PENULTIMATE), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B9", seen(A, B, B), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B9", seen(A, B, B, elsewhere=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B9", seen(A, B, NO.NOT_READ), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B10", seen(A, B, C), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B10", seen(A, B, NO.MISSING), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B11", seen(A, B, B, fresh=True, pending=True), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    ("B9", seen(A, B, B, fresh=True, elsewhere=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B9", seen(A, B, B, pending=True, elsewhere=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B11", seen(None, B, B, fresh=True), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    ("B14", seen(None, B, B, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B15", seen(None, B, B), CheckVerdict.FAILURE, ManifestAction.CREATE, FollowUp.AUDIT),
    ("B15", seen(None, B, NO.NOT_READ), CheckVerdict.FAILURE, ManifestAction.CREATE, FollowUp.AUDIT),
    ("B16", seen(None, B, C), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B25", seen(None, B, B, contradicted=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B11", seen(None, B, B, contradicted=True, fresh=True), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    (
        "B17",
        seen(A, NO.MISSING, NO.MISSING, attempt=PENULTIMATE),
        CheckVerdict.RETRY,
        ManifestAction.KEEP,
        FollowUp.NONE,
    ),
    ("B18", seen(A, NO.MISSING, NO.MISSING), CheckVerdict.FAILURE, ManifestAction.MARK_MISSING, FollowUp.BIT_ERROR),
    (
        "B18",
        seen(A, NO.MISSING, NO.MISSING, elsewhere=True),
        CheckVerdict.FAILURE,
        ManifestAction.MARK_MISSING,
        FollowUp.REPAIR,
    ),
    ("B19", seen(A, NO.NO_CHECKSUM, A), CheckVerdict.SUCCESS, ManifestAction.KEEP, FollowUp.NONE),
    ("B19", seen(A, NO.NO_CHECKSUM, B, fresh=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B19", seen(A, NO.NO_CHECKSUM, NO.NOT_READ), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B20", seen(None, NO.MISSING, NO.MISSING, attempt=1), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    (
        "B21",
        seen(A, NO.MISSING, NO.MISSING, deleted=True, attempt=1),
        CheckVerdict.IGNORE,
        ManifestAction.KEEP,
        FollowUp.NONE,
    ),
    ("B22", seen(A, NO.UNREACHABLE, NO.NOT_READ, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    ("B22", seen(A, NO.UNREACHABLE, NO.NOT_READ), CheckVerdict.ERROR, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    ("B26", seen(A, A, NO.CHANGED, attempt=1), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    ("B31", seen(A, NO.LEFT_OUT, NO.MISSING, attempt=1), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
    *(
        ("B32", seen(manifest, store, NO.REFUSED, **more), CheckVerdict.ERROR, ManifestAction.KEEP, FollowUp.NONE)
        for manifest, store in ((A, A), (None, A), (A, NO.NO_CHECKSUM))
        for more in ({"attempt": 1}, {"elsewhere": True, "fresh": True})
    ),
    ("B9", seen(A, B, NO.REFUSED, elsewhere=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.REPAIR),
    ("B24", seen(A, A, NO.REFUSED, deleted=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (
        "B27",
        seen(A, NO.DAMAGED_RECORD, NO.NOT_READ, attempt=1, elsewhere=True),
        CheckVerdict.FAILURE,
        ManifestAction.KEEP,
        FollowUp.REPAIR,
    ),
    (
        "B17",
        seen(A, NO.MISSING, NO.MISSING, attempt=1, read_only=True),
        CheckVerdict.RETRY,
        ManifestAction.KEEP,
        FollowUp.NONE,
    ),
    *(
        (
            "B30",
            seen(A, store, NO.MISSING, read_only=True, elsewhere=True),
            CheckVerdict.FAILURE,
            ManifestAction.MARK_MISSING,
            FollowUp.NONE,
        )
        for store in (A, NO.MISSING)
    ),
    ("B24", seen(A, A, A, deleted=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
]


@pytest.mark.parametrize(("row", "observation", "verdict", "action", "task"), REFERENCE)
def test_a_row_of_the_reference_table_has_its_outcome(
    row: str, observation: Observation, verdict: CheckVerdict, action: ManifestAction, task: FollowUp
) -> None:
    outcome = decide_bit_check(observation)
    assert (outcome.row, outcome.verdict, outcome.manifest, outcome.task) == (row, verdict, action, task)


DOCUMENT = [
    # row of the document, observation with all four sources, verdict, what is done
    (1, seen(A, A, A, audit=A), CheckVerdict.SUCCESS, ManifestAction.KEEP, FollowUp.NONE),
    (1, seen(A, A, NO.NOT_READ, audit=A), CheckVerdict.SUCCESS, ManifestAction.KEEP, FollowUp.NONE),
    (2, seen(A, A, B, audit=A), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (3, seen(A, B, A, audit=A), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (4, seen(A, B, NO.NOT_READ, audit=A, attempt=1), CheckVerdict.RETRY, ManifestAction.KEEP, FollowUp.NONE),
    (5, seen(A, B, B, audit=B), CheckVerdict.FAILURE, ManifestAction.SET_TO_STORE, FollowUp.NONE),
    (5, seen(None, B, B, audit=B), CheckVerdict.FAILURE, ManifestAction.CREATE, FollowUp.NONE),
    (6, seen(A, A, A, audit=B), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (6, seen(A, A, NO.NOT_READ, audit=B), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (7, seen(A, A, A, audit=None), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.AUDIT),
    (
        8,
        seen(A, NO.MISSING, NO.MISSING, audit=A),
        CheckVerdict.FAILURE,
        ManifestAction.MARK_MISSING,
        FollowUp.BIT_ERROR,
    ),
    (9, seen(None, B, B, audit=None), CheckVerdict.FAILURE, ManifestAction.CREATE, FollowUp.AUDIT),
    (10, seen(A, B, B, audit=A), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (None, seen(None, B, B, audit=A, fresh=True), CheckVerdict.FAILURE, ManifestAction.KEEP, FollowUp.BIT_ERROR),
    (11, seen(None, NO.MISSING, NO.MISSING, audit=None), CheckVerdict.IGNORE, ManifestAction.KEEP, FollowUp.NONE),
]


@pytest.mark.parametrize(("number", "observation", "verdict", "action", "task"), DOCUMENT)
def test_a_row_of_the_document_has_its_outcome(
    number: int, observation: Observation, verdict: CheckVerdict, action: ManifestAction, task: FollowUp
) -> None:
    outcome = decide_bit_check(observation)
    assert (outcome.document, outcome.verdict, outcome.manifest, outcome.task) == (number, verdict, action, task)


def test_every_observation_has_an_outcome_of_a_known_row() -> None:
    assert {decide_bit_check(observation).row for observation in EVERYTHING} == set(ROWS) - BY_TWO_STORES


def test_the_outcome_depends_only_on_which_sums_are_equal() -> None:
    names = {A: D, B: A, C: B, D: C}

    def renamed(value: str | None) -> str | None:
        return names.get(value, value) if value is not None else None

    for observation in EVERYTHING:
        other = msgspec.structs.replace(
            observation,
            manifest=renamed(observation.manifest),
            store=renamed(observation.store),
            content=renamed(observation.content),
            audit=renamed(observation.audit),
        )
        assert canonical_observation(other) == canonical_observation(observation)
        assert decide_bit_check(other) == decide_bit_check(observation)


def every(predicate: object) -> list[tuple[Observation, BitCheckOutcome]]:
    return [(o, decide_bit_check(o)) for o in EVERYTHING if predicate(o)]  # type: ignore[operator]


def test_the_last_attempt_is_never_retried_and_a_wait_comes_only_before_it() -> None:
    for observation, outcome in every(lambda o: True):
        if outcome.verdict == CheckVerdict.RETRY:
            assert observation.attempt < LAST_ATTEMPT
            assert outcome.delay == (RETRY_DELAY if observation.attempt == PENULTIMATE else 0.0)
        else:
            assert outcome.delay == 0.0


def test_p9_success_means_that_nothing_contradicts_the_manifest() -> None:
    for observation, outcome in every(lambda o: True):
        if outcome.verdict == CheckVerdict.SUCCESS:
            assert observation.manifest is not None
            assert not observation.deleted
            assert observation.store in (observation.manifest, SourceAnswer.NO_CHECKSUM)
            assert observation.content in (observation.manifest, SourceAnswer.NOT_READ)
            assert observation.audit in (observation.manifest, SourceAnswer.NOT_KEPT)


def test_a_row_of_the_manifest_is_never_replaced_by_what_only_the_provider_and_the_bytes_say() -> None:
    for observation, outcome in every(lambda o: True):
        if outcome.manifest == ManifestAction.SET_TO_STORE:
            assert outcome.verdict == CheckVerdict.FAILURE
            assert observation.audit == observation.store
        if outcome.manifest == ManifestAction.CREATE:
            assert observation.manifest is None and not observation.deleted
            assert observation.content in (observation.store, SourceAnswer.NOT_READ)
            assert observation.audit in (observation.store, None, SourceAnswer.NOT_KEPT)
            assert observation.audit == observation.store or not observation.contradicted


def test_rot_is_reported_at_once_however_fresh_the_object_is() -> None:
    rotten = every(lambda o: o.manifest == A and not o.deleted and o.store == A and o.content in (B, C))
    assert rotten
    assert all(outcome.row == "B3" and outcome.verdict == CheckVerdict.FAILURE for _, outcome in rotten)


def test_b11_an_item_that_contradicts_its_row_is_excused_only_while_a_change_of_it_waits_in_the_outbox() -> None:
    excused = every(lambda o: o.manifest is not None)
    waiting = [observation for observation, outcome in excused if outcome.row == "B11"]
    assert waiting
    assert all(observation.fresh and observation.pending for observation in waiting)


def test_b11_an_item_that_the_audit_log_knows_is_not_excused_though_its_row_was_lost() -> None:
    known = every(lambda o: o.manifest is None and o.audit in (A, B, C, D) and not o.deleted)
    assert known
    assert all(outcome.row != "B11" for _, outcome in known)


def test_a_checksum_that_we_keep_ourselves_changes_only_whom_b7_asks() -> None:
    changed = []
    for observation, outcome in every(lambda o: True):
        own = decide_bit_check(msgspec.structs.replace(observation, own_record=True))
        if own != outcome:
            changed.append((observation, outcome, own))
    assert changed
    for observation, outcome, own in changed:
        assert (outcome.row, own.row, own.verdict) == ("B7", "B27", CheckVerdict.FAILURE)
        assert own.task == (FollowUp.REPAIR if observation.elsewhere else FollowUp.BIT_ERROR)
        assert observation.content == observation.manifest
        assert observation.audit in (observation.manifest, None, NO.NOT_KEPT)
    asked = every(lambda o: o.audit in (o.manifest, None, NO.NOT_KEPT))
    assert len(changed) == sum(outcome.row == "B7" for _, outcome in asked)


def test_every_failure_asks_for_something_to_be_done() -> None:
    for _, outcome in every(lambda o: True):
        if outcome.verdict in (CheckVerdict.FAILURE, CheckVerdict.ERROR) and outcome.row != "B32":  # reports tell of it
            assert outcome.task != FollowUp.NONE or outcome.manifest != ManifestAction.KEEP
        else:
            assert outcome.task == FollowUp.NONE
            assert outcome.manifest == ManifestAction.KEEP


def test_the_manual_has_every_row_with_its_name_its_meaning_and_its_results() -> None:
    results: dict[str, set[str]] = {row: set() for row in ROWS}
    for _, outcome in every(lambda o: True):
        results[outcome.row].add(outcome.verdict.value)
    results |= {row: {CheckVerdict.FAILURE.value} for row in BY_TWO_STORES}
    manual = (Path(__file__).parents[2] / "docs" / "mill.md").read_text()
    table = manual.partition("| number | name | meaning | result | what happens |")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if re.match(r"\| [AB]\d+V? \|", line)]
    expected = [
        f"| {row} | {text.kind} | {text.detail} | {', '.join(sorted(results[row]))} |" for row, text in ROWS.items()
    ]
    assert [line.removesuffix(" |").rpartition(" | ")[0] + " |" for line in lines] == expected


def test_an_attempt_out_of_range_counts_as_the_nearest() -> None:
    assert decide_bit_check(seen(A, B, A, attempt=0)).row == "B5"
    assert decide_bit_check(seen(A, B, A, attempt=99)).row == "B7"


def test_b12_and_b13_an_unknown_or_impossible_age_is_old() -> None:
    assert not is_fresh(None, 10**15)
    assert not is_fresh(10**15 + FRESH_MICROSECONDS, 10**15)
    assert is_fresh(10**15 - FRESH_MICROSECONDS + 1, 10**15)
    assert not is_fresh(10**15 - FRESH_MICROSECONDS, 10**15)
