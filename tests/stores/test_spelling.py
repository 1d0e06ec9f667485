"""Content ids as paths: reversible, and never outside their folder."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.stores.names import MAX_CONTENT_ID_BYTES, check_content_id, check_space
from millstream.stores.path_encoding import (
    FLAT_FOLDER,
    decode_flat_name,
    decode_name,
    encode_name,
    encoded_paths,
    item_paths,
    plain_path,
)
from millstream.stores.protocol import StoreInputError

odd_text = st.text(
    st.one_of(st.sampled_from("./%\n\\ aé"), st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
)
content_ids = st.one_of(
    odd_text,
    st.lists(odd_text, min_size=1, max_size=4).map("/".join),
    st.tuples(odd_text, st.integers(1, 400)).map(lambda pair: pair[0] * pair[1]),
).map(lambda text: text.encode()[:MAX_CONTENT_ID_BYTES].decode("utf-8", "ignore") or "x")


def read_path(path: tuple[str, ...]) -> bytes:
    """The id that a path spells, by the rules of the format document."""
    flat = path[0] == FLAT_FOLDER
    names = path[1:] if flat else path
    read = decode_flat_name if flat else decode_name
    spelled = b""
    for name in names[:-1]:
        piece = read(name[:-1]) if name.endswith("%") else read(name)
        assert piece is not None
        spelled += piece if name.endswith("%") else piece + b"/"
    last = read(names[-1])
    assert last is not None
    return spelled + last


@given(content_ids)
def test_every_spelling_reads_back_as_the_id(content_id: str) -> None:
    for path in encoded_paths(content_id):
        assert read_path(path) == content_id.encode()


@given(content_ids)
def test_every_name_is_one_that_a_file_may_have_and_stays_inside(content_id: str) -> None:
    for path in encoded_paths(content_id):
        assert sum(len(name.encode()) + 1 for name in path) < 4096
        for name in path:
            assert 1 <= len(name.encode()) <= 255
            assert "/" not in name
            assert not name.startswith(".")
            assert not any(ord(character) < 32 for character in name)


@given(st.sets(content_ids, min_size=2, max_size=8))
def test_no_two_ids_share_a_path(ids: set[str]) -> None:
    paths = [path for content_id in ids for path in encoded_paths(content_id)]
    assert len(set(paths)) == len(paths)


@given(st.text(st.sampled_from(string.ascii_letters + string.digits + " _-."), min_size=1, max_size=50))
def test_plain_segments_are_spelled_as_they_are(segment: str) -> None:
    plain = segment.lstrip(".") or "x"
    assert encoded_paths(f"folder/{plain}")[0] == ("folder", plain)


@pytest.mark.parametrize("name", ["%", "%4", "%41", "%2f", "a%2Fb", ".x", "%2e", "a\nb", "%FF", "50%", "caf\udce9"])
def test_a_name_that_we_would_not_write_is_not_read(name: str) -> None:
    assert decode_name(name) is None


def test_hidden_names_are_escaped_so_that_no_space_hides_our_own_folder() -> None:
    assert encode_name(".millstream") == "%2Emillstream"


def test_the_format_document_spells_as_we_do() -> None:
    document = Path(__file__).parents[2] / "docs" / "formats" / "local-store.md"
    rows = re.findall(r'^\| `(".*")` \| `(.*)` \|$', document.read_text("utf-8"), re.MULTILINE)
    assert len(rows) >= 8
    for content_id, path in rows:
        assert "/".join(encoded_paths(json.loads(content_id))[0]) == path


@given(st.one_of(content_ids, st.text("ab.-_ /%", min_size=1, max_size=90)))
def test_the_short_way_to_a_plain_id_leads_where_the_rules_do(content_id: str) -> None:
    path = plain_path("a space", content_id)
    if path is not None:
        assert (*path[0], path[1]) == item_paths("a space", content_id)[0]


def test_plain_ids_have_a_short_way() -> None:
    assert plain_path("s", "003/file 000001.dat") == (("s", "003"), "file 000001.dat")
    assert plain_path("%s", "a") == (("%25s",), "a")
    for odd in ("a//b", "/a", "a/", ".a", "a/.b", "a%b", "é", "a\nb", "a\n", "x" * 81):
        assert plain_path("s", odd) is None


def test_an_error_of_invalid_text_says_whether_it_is_a_space_or_an_item() -> None:
    with pytest.raises(StoreInputError, match=r"invalid space name .* must be valid UTF-8"):
        check_space("\ud800")
    with pytest.raises(StoreInputError, match=r"invalid content id .* must be valid UTF-8"):
        check_content_id("\ud800")
