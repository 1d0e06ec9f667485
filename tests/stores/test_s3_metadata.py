"""Properties go into user metadata, and come back as they were."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.stores import ChecksumOrigin, DamagedRecordError, StoreError, StoreInputError
from millstream.stores.s3 import BucketStore, parse_address
from millstream.stores.s3.metadata import MAX_METADATA_BYTES, SHA256, Metadata, pack, unpack
from millstream.stores.s3.objects import read_head

names = st.one_of(
    st.sampled_from(["creator", "Creator", "a_b", "millstream-sha256", "naïve", " "]), st.text(min_size=1)
)
values = st.one_of(st.text(max_size=40), st.text("ab é\n", max_size=300))
texts = st.dictionaries(names.filter(lambda name: name.isprintable() or True), values, max_size=8)


def travel(packed: dict[str, str]) -> dict[str, str]:
    """What HTTP and the strictest server make of user metadata."""
    assert all(value.isascii() and value.isprintable() and 0 < len(value) <= 256 for value in packed.values())
    assert len({name.lower() for name in packed}) == len(packed) <= 90
    return {name.lower(): value.strip() for name, value in packed.items()}


def is_utf8(properties: dict[str, str]) -> bool:
    return all(text.encode("utf-8", "ignore").decode() == text for pair in properties.items() for text in pair)


@given(texts.filter(is_utf8))
def test_any_properties_survive_the_journey(properties: dict[str, str]) -> None:
    metadata = Metadata(properties, "ab" * 32, "0123456789abcdef")
    try:
        packed = pack(metadata)
    except StoreInputError:
        assert sum(len(name.encode()) + len(value.encode()) for name, value in properties.items()) > 250
        return
    assert unpack(travel(packed)) == metadata


def test_simple_properties_keep_their_names_for_other_tools() -> None:
    packed = pack(Metadata({"creator": "mill", "content-file-modified": "2026-11-20"}))
    assert packed == {"creator": "mill", "content-file-modified": "2026-11-20"}


def test_many_properties_are_packed_together() -> None:
    properties = {f"n{number}": "x" for number in range(150)}
    packed = pack(Metadata(properties))
    assert len(packed) < 20
    assert unpack(travel(packed)).properties == properties


def test_more_than_s3_keeps_is_refused_before_it_is_sent() -> None:
    fits = {"a": "x" * 250, "b": "x" * 250}
    assert unpack(travel(pack(Metadata(fits)))).properties == fits
    with pytest.raises(StoreInputError, match="2,048"):
        pack(Metadata({"a": "x" * MAX_METADATA_BYTES}))


def test_what_others_wrote_is_read_and_what_was_cut_is_an_error() -> None:
    assert unpack({"mtime": "1.5", "sha": "x"}).properties == {"mtime": "1.5", "sha": "x"}
    packed = pack(Metadata({"naïve": "x" * 600}))
    del packed["millstream-properties-1"]
    with pytest.raises(StoreError, match="put the item again from a good copy"):
        unpack(packed)


def test_metadata_is_read_whatever_the_case_of_its_names() -> None:
    kept = Metadata({"creator": "mill", "naïve": "é"}, "ab" * 32, "put")
    for spelled in (str.upper, str.title, str.lower):
        assert unpack({spelled(name): value for name, value in pack(kept).items()}) == kept


def test_metadata_of_a_source_is_read_whatever_the_case_of_its_names() -> None:
    class Client:
        def head_object(self, **_: str) -> dict[str, Any]:
            return {"ContentLength": 1, "Metadata": {"Mtime": "1.5"}, "ETag": '"x"'}

    source = BucketStore(parse_address("s3://bucket?space=s"), client=Client())  # type: ignore[arg-type]
    assert source.info("s", "item").properties == {"mtime": "1.5"}


@pytest.mark.parametrize(
    ("more", "origin"),
    [
        ({}, ChecksumOrigin.USER),
        ({"ChecksumSHA256": base64.b64encode(b"s" * 32).decode()}, ChecksumOrigin.PROVIDER),
        ({"ChecksumCRC32C": base64.b64encode(b"crc3").decode()}, ChecksumOrigin.USER),
        ({"ChecksumSHA256": base64.b64encode(b"s" * 32).decode(), "ChecksumType": "COMPOSITE"}, ChecksumOrigin.USER),
    ],
    ids=["none", "sha256", "crc only", "of parts"],
)
def test_the_checksum_of_an_object_is_our_own_where_the_server_has_none(
    more: dict[str, str], origin: ChecksumOrigin
) -> None:
    info = read_head({"ContentLength": 5, "Metadata": {SHA256: "ab" * 32}, **more}, "a").info("a")
    provided = (b"s" * 32).hex()
    assert (info.checksum_origin(), info.checksum()) == (
        origin, provided if origin == ChecksumOrigin.PROVIDER else "ab" * 32
    )  # fmt: skip
    assert (info.checksum_origin("md5"), read_head({"ContentLength": 5}, "a").info("a").checksum_origin()) == (
        None,
        None,
    )


@pytest.mark.parametrize("sha256", ["x", "AB" * 32, "ab" * 32 + "\n", "ab" * 31 + "\x1b]"])
def test_what_is_no_sha256_is_a_damaged_record(sha256: str) -> None:
    with pytest.raises(DamagedRecordError, match="recorded SHA-256"):
        unpack({SHA256: sha256})
