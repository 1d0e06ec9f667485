"""Conditions in SQL92, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.messaging.broker.handlers.sql92 import compile_condition
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

PROPERTIES = {"a": "5", "b": "text", "yes": "true", "city": "Zürich", "it": "it's"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a = 5", True),
        ("a <> 5", False),
        ("a != 6", True),
        ("a > 4.5 AND a < 5.5", True),
        ("a BETWEEN 5 AND 6", True),
        ("a NOT BETWEEN 5 AND 6", False),
        ("a >= 5 and a <= 5", True),
        ("a IN (1, 5)", True),
        ("b IN ('x', 'text')", True),
        ("b NOT IN ('x', 'y')", True),
        ("b = 'text'", True),
        ("it = 'it''s'", True),
        ("b > 5", False),  # a text is not a number: unknown
        ("NOT b > 5", False),  # … and its opposite is unknown as well
        ("missing = 1", False),
        ("NOT missing = 1", False),
        ("missing IS NULL", True),
        ("a IS NOT NULL", True),
        ("missing = 1 OR a = 5", True),
        ("missing = 1 AND a = 5", False),
        ("missing = 1 AND a = 6", False),
        ("yes = TRUE", True),
        ("yes = FALSE", False),
        ("NOT (a = 5 OR b = 'x')", False),
        ("NOT a = 6 AND b = 'text'", True),
        ("a = 6 OR a = 5 AND b = 'text'", True),
        ("city STARTSWITH 'Zü'", True),
        ("city ENDSWITH 'ich' AND city CONTAINS 'ri'", True),
        ("city NOT CONTAINS 'x'", True),
        ("a = -5", False),
        ("a = 5e0", True),
    ],
)
def test_conditions_select_as_sql_says(condition: str, expected: bool) -> None:
    assert compile_condition(condition)(PROPERTIES) is expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("a IN (" + "1, " * 1000 + "{})", True),
        ("a = 1" + " OR a = 1" * 440 + " OR a = {}", True),
        ("a > 1" + " AND a > 1" * 390 + " AND a < {}", False),
        ("a NOT IN (" + "1, " * 1000 + "{})", False),
    ],
)
def test_a_filter_may_have_as_many_terms_as_fit_into_it(terms: str, expected: bool) -> None:
    assert compile_condition(terms.format(5))(PROPERTIES) is expected


@pytest.mark.parametrize(
    "condition",
    ["", "a", "a =", "= 5", "a = 5 AND", "(a = 5", "a = 5)", "a == 5", "a IN ()", "a IN (1", "a BETWEEN 1", "a ; b",
     "a IS 5", "'open", "(" * 60 + "a = 1" + ")" * 60, "a = 1 OR " * 1000 + "a = 1"],
)  # fmt: skip
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(StatusError) as refused:
        compile_condition(condition)
    assert refused.value.code == v2.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("(a = 1 b", "'\\)' is missing before 'b'"),
        ("(a = 1", "'\\)' is missing at the end"),
        (" " * 5000, "it has 5,000 characters; the limit is 4,096: shorten it"),
        ("a = 1 b = 2", "unexpected 'b' after a condition: combine conditions with AND or OR"),
    ],
)
def test_the_place_of_an_error_is_named(condition: str, why: str) -> None:
    with pytest.raises(StatusError, match=why):
        compile_condition(condition)


@given(st.text(max_size=80))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        assert compile_condition(text)(PROPERTIES) in (True, False)
    except StatusError as refused:
        assert refused.code == v2.ILLEGAL_FILTER_EXPRESSION


@given(value=st.integers(-100, 100), low=st.integers(-100, 100), high=st.integers(-100, 100))
def test_between_is_two_comparisons(value: int, low: int, high: int) -> None:
    properties = {"a": str(value)}
    between = compile_condition(f"a BETWEEN {low} AND {high}")(properties)
    assert between == (low <= value <= high) == (not compile_condition(f"a NOT BETWEEN {low} AND {high}")(properties))
