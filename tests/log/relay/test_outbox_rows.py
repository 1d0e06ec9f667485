"""A row becomes a message, or says why it is none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.message import Message
from millstream.log.ids import IdRange
from millstream.log.relay import OutboxError, OutboxTable
from millstream.log.relay.progress import decode_rows, each_id, encode_rows, runs
from millstream.log.relay.rows import RowError, row_message
from millstream.log.relay.settings import RelayRole

PURPOSES = ("body", "key", "source", "event_time", "headers")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((b"\x00\xff", None, None, None, None), Message(b"\x00\xff")),
        (("tëxt", "k", b"s", 5, ""), Message("tëxt".encode(), "k", "s", 5)),
        ((b"", 42, "", "1970-01-01T00:00:01", b"{}"), Message(b"", "42", "", 1_000_000)),
        ((b"", "", "", "1970-01-01 01:00:01+01:00", None), Message(b"", "", "", 1_000_000)),
        (
            (b"x", "", "", None, '{"a": "1", "b": "é"}'),
            Message(b"x", headers=(("a", b"1"), ("b", "é".encode()))),
        ),
        ((b"x", "", "", None, '[["a", "1"], ["a", "2"]]'), Message(b"x", headers=(("a", b"1"), ("a", b"2")))),
    ],
)
def test_a_row_becomes_the_message_it_describes(row: tuple[Any, ...], expected: Message) -> None:
    assert row_message(PURPOSES, row) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((None, "", "", None, None), "body is NULL"),
        ((b"", b"\xff", "", None, None), "key is not UTF-8"),
        ((b"x", "", "millstream.tick", None, None), "the source 'millstream.tick' is reserved for ticks"),
        ((b"", "", "", "noon", None), "invalid event time 'noon'"),
        ((b"", "", "", 2**63, None), f"the event time {2**63} does not fit into a signed 64-bit integer"),
        ((b"", "", "", None, "{"), "headers"),
        ((b"", "", "", None, '{"a": 1}'), "headers"),
        ((b"", "", "", None, b"\xff"), "headers"),
        (
            (b"x" * (64 << 20), "", "", None, None),
            "the row has 67,108,864 bytes, but the limit of a row is 67,104,768 bytes: put the content into a store",
        ),
    ],
)
def test_a_row_that_is_no_message_says_why(row: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        row_message(PURPOSES, row)


@given(st.sets(st.integers(-50, 200), max_size=80).map(sorted))
def test_ids_are_kept_as_ranges_that_hold_no_others(ids: list[int]) -> None:
    ids = [number for number in ids if number >= 0]
    found = decode_rows(encode_rows(runs(ids)))
    assert list(each_id(found)) == ids
    assert all(before.last + 1 < after.first for before, after in itertools.pairwise(found))


def test_ranges_are_written_short() -> None:
    assert encode_rows([IdRange(1, 500), IdRange(502, 502)]) == "1:500,502"
    assert decode_rows("") == ()


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a`b", "1a", "a" * 60, "a.b.c"])
def test_a_name_that_would_have_to_be_quoted_with_care_is_refused(name: str) -> None:
    with pytest.raises(OutboxError, match="invalid"):
        OutboxTable(name=name)
    with pytest.raises(OutboxError, match="invalid"):
        OutboxTable(body=name)


def test_the_settings_of_a_relay_have_every_name_of_the_table_with_the_same_default() -> None:
    role, table = RelayRole(url="sqlite:///app.db"), OutboxTable()
    assert role.table == table.name
    for column in set(OutboxTable.__struct_fields__) - {"name"}:
        assert getattr(role, column) == getattr(table, column)
