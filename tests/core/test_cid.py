"""Content identifiers name bytes by their SHA-256."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.cid import CidError, CidForm, CidHasher, cid_of, digest_from_cid, form_of, is_cid, is_raw_cid

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


UNIXFS = [
    (
        0,
        "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
    ),
    (
        5,
        "QmXmgbAedhHaxFVwFLP25npD58GDezqV3dgn5epw7h5jm5",
        "bafkreibgvdglonyr2jmmemhmimq5r5usftifdmvyapadbngpatpaimezwy",
    ),
    (
        262_144,
        "QmPtBg68WR3S7PeajZ4A8nZuJtx5Q9HcegaqXa8P1ogwC5",
        "bafkreigfzujldfc3kac4khdwhsdftadvbpqf7r4rcz45tsy5v5mmuxsjce",
    ),
    (
        262_145,
        "QmW54qrASwQDdCyE1ik8GjQzD2NBZkp6k3Gnu3wh7HoF71",
        "bafybeig6znqiybwijw5celqbrnzrcmtx7vjz35f6q7fas2xpgbuduy4vim",
    ),
    (
        524_288,
        "QmZvMD8v5cAUVZMRNdKmmxmJTfnpZusuPaQuMHdht2UJud",
        "bafybeicaatol54nwf2fbglhdasdqztlm6boxuwawghqjcmghvrgz7xxtli",
    ),
    (
        3_000_000,
        "QmVucDHVdZkA2PGha41zzeMYgQRsXD1Bd9mYPCfeV6rckw",
        "bafybeiejblkyhmzy4hx7qpjobfsfiyccivplpd4afu4hztml6m562v6yba",
    ),
    (
        45_613_056,
        "QmfLfg6K8hVmSuXgkr4HGSFgw8ogpFeHadQKksCzdFtp5L",
        "bafybeigqxmeweruxc5h6sycnyeliy4dpwovxeixj65tcpg4ibzauryjidi",
    ),
    (
        45_613_057,
        "QmT24rDvrjZLZ4mTg2uzdAWASu3cc46G64Z4Za1Rg3F8Mm",
        "bafybeif27l2j4irucp2iapdwkgrvgo73i2rkszjsw4o5gr2c3xh2vtl2tq",
    ),
]
"""Bytes, version 0, version 1: what the JavaScript importer of IPFS (balanced, 174 links, 262,144 bytes) names them."""


def pattern(size: int) -> bytes:
    places = np.arange(size, dtype=np.int64)
    return bytes(((places * 7 + (places >> 8) * 13 + (places >> 16) * 31) & 255).astype(np.uint8))


@pytest.mark.parametrize(("size", "v0", "v1"), UNIXFS)
def test_files_have_the_names_that_ipfs_gives_them(size: int, v0: str, v1: str) -> None:
    data = pattern(size)
    assert (cid_of(data, CidForm.UNIXFS_V0), cid_of(data, CidForm.UNIXFS_V1)) == (v0, v1)
    assert form_of(v0) == CidForm.UNIXFS_V0
    assert form_of(v1) == (CidForm.RAW if size <= 262_144 else CidForm.UNIXFS_V1)
    assert (v1 == cid_of(data)) == (size <= 262_144), "one chunk has one name"
    assert not is_raw_cid(v0)


@given(st.lists(st.integers(0, 300_000), max_size=4), st.sampled_from(CidForm))
def test_the_pieces_in_which_bytes_come_do_not_matter(sizes: list[int], form: CidForm) -> None:
    hasher, data = CidHasher(form), pattern(sum(sizes))
    for start, size in zip(itertools.accumulate([0, *sizes]), sizes, strict=False):
        hasher.update(data[start : start + size])
    assert hasher.cid() == cid_of(data, form)


@pytest.mark.parametrize(
    "text", ["Qm", "Qm" + "1" * 44, "Qm" + "0" * 44, "bafybei" + "a" * 51, UNIXFS[0][1][:-1] + "l"]
)
def test_what_is_no_name_of_a_file_is_refused(text: str) -> None:
    assert not is_cid(text)
