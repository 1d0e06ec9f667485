"""Ids of the paths of a folder source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.stores.folder import decode_path, encode_path
from millstream.stores.folder.versions import hash_versions

names = st.binary(min_size=1, max_size=20).map(lambda name: name.replace(b"/", b"%").replace(b"\0", b"0"))
paths = st.lists(names.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=4).map(b"/".join)


@given(paths)
def test_every_path_has_an_id_that_leads_back_to_it(path: bytes) -> None:
    content_id = encode_path(path)
    assert decode_path(content_id) == path
    assert len(content_id.encode("utf-8")) <= 3 * len(path)


@given(st.text())
def test_an_id_names_one_path_at_most(content_id: str) -> None:
    path = decode_path(content_id)
    assert path is None or encode_path(path) == content_id


@given(st.lists(st.sampled_from([b"%", b"2", b"5", b"F", b"\xff", b"\xc3", b"\xa4", b"A"]), min_size=1).map(b"".join))
def test_names_that_look_like_escapes_are_kept_apart(path: bytes) -> None:
    assert decode_path(encode_path(path)) == path


@pytest.mark.parametrize(
    ("path", "content_id"),
    [
        (b"50%", "50%"),
        (b"a%20b", "a%20b"),
        (b"%25", "%2525"),
        (b"%FF", "%25FF"),
        (b"%ff", "%ff"),
        (b"caf\xe9", "caf%E9"),
        ("café".encode(), "café"),
        (b"\xed\xa0\x80", "%ED%A0%80"),
        (b".a/b", ".a/b"),
    ],
)
def test_only_what_is_not_utf8_or_ambiguous_is_escaped(path: bytes, content_id: str) -> None:
    assert encode_path(path) == content_id
    assert decode_path(content_id) == path


@pytest.mark.parametrize(
    "content_id", ["", "/", "//", "a//b", "/a", ".", "..", "a/../b", "./a", "\0", "\udc80", "%C3%A4"]
)
def test_ids_that_name_no_path_lead_nowhere(content_id: str, tmp_path: Path) -> None:
    assert decode_path(content_id) is None
    for path in ("a/a", "a/b", "b", "\xe4"):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, ns=(0, 0))
    assert hash_versions(str(tmp_path), [("b", 0, "0"), (content_id, 0, "0")])[1] is None
