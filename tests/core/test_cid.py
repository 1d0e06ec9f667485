"""Content identifiers name bytes by their SHA-256."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.cid import CidError, cid_of, digest_from_cid, is_cid

HELLO = "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"
"""The CID of b"hello", as `ipfs add --raw-leaves --cid-version=1` gives it."""


def test_a_known_file_has_its_known_cid() -> None:
    assert cid_of(b"hello") == HELLO


@given(st.binary())
def test_the_digest_comes_back_out_of_the_cid(data: bytes) -> None:
    assert digest_from_cid(cid_of(data)) == hashlib.sha256(data).digest()


@given(st.integers(0, 58), st.characters(codec="ascii"))
def test_another_character_makes_another_cid_or_none(place: int, character: str) -> None:
    other = HELLO[:place] + character + HELLO[place + 1 :]
    assert other == HELLO or not is_cid(other) or digest_from_cid(other) != digest_from_cid(HELLO)


@pytest.mark.parametrize(
    "text",
    ["", "b", HELLO[:-1], HELLO + "a", HELLO.upper(), "../" + HELLO, "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"],
)
def test_what_is_no_such_cid_is_refused(text: str) -> None:
    with pytest.raises(CidError):
        digest_from_cid(text)
