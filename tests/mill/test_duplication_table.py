"""The decision table of duplication: every row by its number, and totality over all states."""

from __future__ import annotations

import itertools

import pytest

from millstream.mill.copying.duplication import Act, End, Record, Side, clean_properties, decide

S, T = "5" * 64, "7" * 64
ITEM = Side(End.ITEM, S, {"user": "me"})
NO_ITEM, EMPTY, FILLED = Side(End.NO_ITEM), Side(End.EMPTY_SPACE), Side(End.FILLED_SPACE)
NO_SPACE, UNREACHABLE = Side(End.NO_SPACE), Side(End.UNREACHABLE)

ROWS = [
    # row, space, content id, source, destination, record, act
    ("D1", "", "c", ITEM, ITEM, Record.LIVE, Act.FAIL),
    ("D2", "s", "", FILLED, NO_SPACE, Record.NONE, Act.CREATE_SPACE),
    ("D2", "s", "", EMPTY, FILLED, Record.NONE, Act.CREATE_SPACE),
    ("D3", "s", "", NO_SPACE, EMPTY, Record.NONE, Act.DELETE_SPACE),
    ("D4", "s", "", NO_SPACE, FILLED, Record.NONE, Act.NOTHING),
    ("D5", "s", "", NO_SPACE, NO_SPACE, Record.NONE, Act.NOTHING),
    ("D6", "s", "", UNREACHABLE, FILLED, Record.NONE, Act.RETRY),
    ("D7", "s", "c", ITEM, ITEM, Record.LIVE, Act.NOTHING),
    ("D8", "s", "c", ITEM, Side(End.ITEM, S, {"user": "you"}), Record.LIVE, Act.SET_PROPERTIES),
    ("D8", "s", "c", ITEM, Side(End.ITEM, S, {"user": "me", "more": ""}), Record.LIVE, Act.SET_PROPERTIES),
    ("D11", "s", "c", ITEM, Side(End.ITEM, T), Record.LIVE, Act.COPY),
    ("D11", "s", "c", ITEM, Side(End.ITEM, None), Record.LIVE, Act.COPY),
    ("D12", "s", "c", ITEM, NO_ITEM, Record.LIVE, Act.COPY),
    ("D12", "s", "c", ITEM, NO_SPACE, Record.NONE, Act.COPY),
    ("D13", "s", "c", Side(End.ITEM), ITEM, Record.LIVE, Act.FAIL),
    ("D14", "s", "c", Side(End.ITEM), NO_ITEM, Record.LIVE, Act.FAIL),
    ("D18", "s", "c", NO_ITEM, ITEM, Record.NONE, Act.FAIL),
    ("D19", "s", "c", NO_ITEM, ITEM, Record.DELETED, Act.DELETE),
    ("D19", "s", "c", NO_SPACE, ITEM, Record.DELETED, Act.DELETE),
    ("D20", "s", "c", NO_ITEM, ITEM, Record.LIVE, Act.FAIL),
    ("D21", "s", "c", NO_ITEM, NO_SPACE, Record.LIVE, Act.NOTHING),
    ("D22", "s", "c", UNREACHABLE, ITEM, Record.DELETED, Act.RETRY),
    ("D22", "s", "c", ITEM, UNREACHABLE, Record.DELETED, Act.RETRY),
]


@pytest.mark.parametrize(("row", "space", "content_id", "source", "destination", "record", "act"), ROWS)
def test_a_row_of_the_table_has_its_action(
    row: str, space: str, content_id: str, source: Side, destination: Side, record: Record, act: Act
) -> None:
    action = decide(space, content_id, source, destination, record)
    assert (action.row, action.act) == (row, act)
    assert action.reason


SIDES = [Side(end, sha256, props) for end in End for sha256 in (None, S, T) for props in ({}, {"user": "me"})]


def test_p8_over_all_states_a_delete_needs_a_tombstone_and_an_absent_source() -> None:
    acts = set()
    for space, content_id in itertools.product(("", "s"), ("", "c")):
        for source, destination, record in itertools.product(SIDES, SIDES, Record):
            action = decide(space, content_id, source, destination, record)
            acts.add(action.act)
            if action.act == Act.DELETE:
                assert record == Record.DELETED
                assert source.end in (End.NO_ITEM, End.NO_SPACE, End.EMPTY_SPACE, End.FILLED_SPACE)
            if action.act == Act.DELETE_SPACE:
                assert (source.end, destination.end) == (End.NO_SPACE, End.EMPTY_SPACE)
            if action.act in (Act.COPY, Act.SET_PROPERTIES):
                assert source.end == End.ITEM and source.sha256 is not None
            if End.UNREACHABLE in (source.end, destination.end) and space:
                assert action.act == Act.RETRY
    assert acts == set(Act)


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
    action = decide("s", "c", Side(End.ITEM, S, source), Side(End.ITEM, S, destination), Record.LIVE)
    assert (action.row == "D7") is equal
