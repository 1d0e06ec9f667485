"""Canonical JSON: one byte string for one value, the same one that the reference library writes."""

from __future__ import annotations

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.core.canonical import (
    MAX_SAFE_INTEGER,
    CanonicalError,
    canonical_json,
    parse_canonical,
    plain_json,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_every_value_is_written_as_the_reference_library_writes_it(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(JSON | st.text("[]{}:,-0123456789.eE é"))
@example(1.0)
@example({"a": [-0.0]})
@example({"\U0001f600": 1, "\ufb33": 2})
@example({"a": ":0", "b": "[-1,"})
def test_what_was_decoded_is_written_alike_the_fast_way(value: object) -> None:
    assert plain_json(value) in (None, canonical_json(value))
    assert plain_json({"": []}) == b'{"":[]}'


def test_nesting_beyond_the_recursion_limit_is_refused_with_any_key() -> None:
    value: object = "x"
    for _ in range(9_000):  # what a JSON decoder reads on Python 3.13
        value = [value]
    assert plain_json({"é": 1, "nested": value}) is None
    with pytest.raises(CanonicalError, match="canonical JSON"):
        canonical_json({"é": 1, "nested": value})


@given(JSON)
def test_what_was_written_is_read_back(value: object) -> None:
    again = parse_canonical(canonical_json(value))
    assert canonical_json(again) == canonical_json(value)


@pytest.mark.parametrize(
    "text", [b'{"b":1,"a":2}', b'{"a": 1}', b"1.0", b'"\\u0041"', b"[1,]", b"", b'{"a":1}\n', b"\xff", b"1" * 310]
)
def test_anything_but_the_canonical_bytes_is_refused(text: bytes) -> None:
    with pytest.raises(CanonicalError):
        parse_canonical(text)


def test_the_remedy_for_another_form_is_left_to_the_caller() -> None:
    with pytest.raises(CanonicalError, match=r"is not in canonical form \(RFC 8785\)$"):
        parse_canonical(b'{"a": 1}')


@pytest.mark.parametrize("value", [MAX_SAFE_INTEGER + 1, float("nan"), float("inf"), b"bytes", {1: 2}, "\ud800"])
def test_values_that_json_cannot_carry_are_refused(value: object) -> None:
    with pytest.raises(CanonicalError):
        canonical_json(value)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 900 + b"1" + b"}" * 900])
def test_text_that_is_nested_too_deeply_is_refused(text: bytes) -> None:
    with pytest.raises(CanonicalError):
        parse_canonical(text)
