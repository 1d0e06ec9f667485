"""The decision table of duplication: every row by its number, and totality over all states."""

from __future__ import annotations

import itertools

import pytest

from millstream.mill.duplication.duplication_decision import (
    DuplicationAct,
    EndState,
    ObservedEnd,
    SourceRecord,
    clean_properties,
    decide_duplication,
)

S, T = "5" * 64, "7" * 64
ITEM = ObservedEnd(EndState.ITEM, S, {"user": "me"})
NO_ITEM, EMPTY, FILLED = (
    ObservedEnd(EndState.NO_ITEM),
    ObservedEnd(EndState.EMPTY_SPACE),
    ObservedEnd(EndState.FILLED_SPACE),
)
NO_SPACE, UNREACHABLE = ObservedEnd(EndState.NO_SPACE), ObservedEnd(EndState.UNREACHABLE)

ROWS = [
    # row, space, content id, source, destination, record, act
    ("D1", "", "c", ITEM, ITEM, SourceRecord.LIVE, DuplicationAct.FAIL),
    ("D2", "s", "", FILLED, NO_SPACE, SourceRecord.NONE, DuplicationAct.CREATE_SPACE),
    ("D2", "s", "", EMPTY, FILLED, SourceRecord.NONE, DuplicationAct.CREATE_SPACE),
    ("D3", "s", "", NO_SPACE, EMPTY, SourceRecord.NONE, DuplicationAct.DELETE_SPACE),
    ("D4", "s", "", NO_SPACE, FILLED, SourceRecord.NONE, DuplicationAct.NOTHING),
    ("D5", "s", "", NO_SPACE, NO_SPACE, SourceRecord.NONE, DuplicationAct.NOTHING),
    ("D6", "s", "", UNREACHABLE, FILLED, SourceRecord.NONE, DuplicationAct.RETRY),
    ("D7", "s", "c", ITEM, ITEM, SourceRecord.LIVE, DuplicationAct.NOTHING),
    (
        "D8",
        "s",
        "c",
        ITEM,
        ObservedEnd(EndState.ITEM, S, {"user": "you"}),
        SourceRecord.LIVE,
        DuplicationAct.SET_PROPERTIES,
    ),
    (
        "D8",
        "s",
        "c",
        ITEM,
        ObservedEnd(EndState.ITEM, S, {"user": "me", "more": ""}),
        SourceRecord.LIVE,
        DuplicationAct.SET_PROPERTIES,
    ),
    ("D11", "s", "c", ITEM, ObservedEnd(EndState.ITEM, T), SourceRecord.LIVE, DuplicationAct.COPY),
    ("D11", "s", "c", ITEM, ObservedEnd(EndState.ITEM, None), SourceRecord.LIVE, DuplicationAct.COPY),
    ("D12", "s", "c", ITEM, NO_ITEM, SourceRecord.LIVE, DuplicationAct.COPY),
    ("D12", "s", "c", ITEM, NO_SPACE, SourceRecord.NONE, DuplicationAct.COPY),
    ("D13", "s", "c", ObservedEnd(EndState.ITEM), ITEM, SourceRecord.LIVE, DuplicationAct.FAIL),
    ("D14", "s", "c", ObservedEnd(EndState.ITEM), NO_ITEM, SourceRecord.LIVE, DuplicationAct.FAIL),
    ("D18", "s", "c", NO_ITEM, ITEM, SourceRecord.NONE, DuplicationAct.FAIL),
    ("D19", "s", "c", NO_ITEM, ITEM, SourceRecord.DELETED, DuplicationAct.DELETE),
    ("D19", "s", "c", NO_SPACE, ITEM, SourceRecord.DELETED, DuplicationAct.DELETE),
    ("D20", "s", "c", NO_ITEM, ITEM, SourceRecord.LIVE, DuplicationAct.FAIL),
    ("D21", "s", "c", NO_ITEM, NO_SPACE, SourceRecord.LIVE, DuplicationAct.NOTHING),
    ("D22", "s", "c", UNREACHABLE, ITEM, SourceRecord.DELETED, DuplicationAct.RETRY),
    ("D22", "s", "c", ITEM, UNREACHABLE, SourceRecord.DELETED, DuplicationAct.RETRY),
]


@pytest.mark.parametrize(("row", "space", "content_id", "source", "destination", "record", "act"), ROWS)
def test_a_row_of_the_table_has_its_action(
    row: str,
    space: str,
    content_id: str,
    source: ObservedEnd,
    destination: ObservedEnd,
    record: SourceRecord,
    act: DuplicationAct,
) -> None:
    action = decide_duplication(space, content_id, source, destination, record)
    assert (action.row, action.act) == (row, act)
    assert action.reason


SIDES = [
    ObservedEnd(end, sha256, props) for end in EndState for sha256 in (None, S, T) for props in ({}, {"user": "me"})
]


def test_p8_over_all_states_a_delete_needs_a_tombstone_and_an_absent_source() -> None:
    acts = set()
    for space, content_id in itertools.product(("", "s"), ("", "c")):
        for source, destination, record in itertools.product(SIDES, SIDES, SourceRecord):
            action = decide_duplication(space, content_id, source, destination, record)
            acts.add(action.act)
            if action.act == DuplicationAct.DELETE:
                assert record == SourceRecord.DELETED
                assert source.end in (EndState.NO_ITEM, EndState.NO_SPACE, EndState.EMPTY_SPACE, EndState.FILLED_SPACE)
            if action.act == DuplicationAct.DELETE_SPACE:
                assert (source.end, destination.end) == (EndState.NO_SPACE, EndState.EMPTY_SPACE)
            if action.act in (DuplicationAct.COPY, DuplicationAct.SET_PROPERTIES):
                assert source.end == EndState.ITEM and source.sha256 is not None
            if EndState.UNREACHABLE in (source.end, destination.end) and space:
                assert action.act == DuplicationAct.RETRY
    assert acts == set(DuplicationAct)


@pytest.mark.parametrize(
    ("source", "destination", "equal"),
    [
        ({}, {}, True),
        ({"a": "1"}, {"a": "1"}, True),
        ({"a": "1"}, {}, False),
        ({"a": ""}, {}, False),
        ({"a": "1"}, {"a": "2"}, False),
        ({}, {"a": "1"}, False),
        ({"a": "1", "ETag": "x", "content-md5": "y"}, {"a": "1", "etag": "z", "Last-Modified": "w"}, True),
        ({"content-mimetype": "a"}, {"content-mimetype": "b"}, False),
    ],
)
def test_properties_are_compared_exactly_but_for_what_providers_calculate(
    source: dict[str, str], destination: dict[str, str], equal: bool
) -> None:
    assert (clean_properties(source) == clean_properties(destination)) is equal
    action = decide_duplication(
        "s", "c", ObservedEnd(EndState.ITEM, S, source), ObservedEnd(EndState.ITEM, S, destination), SourceRecord.LIVE
    )
    assert (action.row == "D7") is equal
