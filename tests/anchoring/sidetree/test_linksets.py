"""Hashlinks and anchor linksets, against the worked example of Orb's documentation (trustbloc/docs, CC-BY-4.0)."""

from __future__ import annotations

import base64
import gzip
import json
import urllib.parse
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import CasNotFoundError
from millstream.anchoring.sidetree import (
    ORB,
    SIDETREE,
    BatchFileError,
    Operation,
    OperationBatch,
    OperationType,
    RequestError,
    read_batch,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import canonical
from millstream.anchoring.sidetree.hashlinks import HashLink, link_to, parse_hashlink
from millstream.anchoring.sidetree.linksets import PreviousAnchor, read_linkset, write_linkset
from millstream.testing.dids import DidOwner

UP = (
    "hl:uEiBGCa-NALGYJYwzfSAfnda-qGrFVrNRyIspT_D7TaICng:uoQ-CeEtodHRwczovL29yYi5kb21haW4xLmNvbS9jYXMvdUVpQkdDYS1OQUxHWUpZd3p"
    "mU0FmbmRhLXFHckZWck5SeUlzcFRfRDdUYUlDbmd4QmlwZnM6Ly9iYWZrcmVpY2diZ3h5MmFmcnRhc3l5bTM1ZWFwejN2djZ2YnZta3Z2dGtoZWl3a2twNm"
    "Q1dTNpcWN0eQ"
)
VIA = (
    "hl:uEiBSN1ohlVzMayIU-ib1-TZtGnKht0t-K1GfJI4wx-WfWw:uoQ-BeEtodHRwczovL29yYi5kb21haW4yLmNvbS9jYXMvdUVpQlNOMW9obFZ6TWF5SVU"
    "taWIxLVRadEduS2h0MHQtSzFHZkpJNHd4LVdmV3c"
)
SUFFIXES = [
    "EiBas5ylB1UYwcNZOvCAg-50hyaihmh5BRebYFBiCgUsRg",
    "EiCL4-s0fCA7ULamCm5Zbo1at5W27ffmBbXX-U4W6mOFJA",
    "EiBB8tY0zZAwnuqLEKSv9sRFj6hHcJev1iV1R0Ul61pTJw",
    "EiCTkfxfFi0wQRJurizVRXrrXW8Bod7N2HvmmnPn07ah6Q",
    "EiAzWwqSPwc0WljWhMAgR2W2P7aXChaZ3Y1MMv51lvVhmw",
]
ORIGINAL = "hl:uEiAirtU3PmCxBQI_obHgUP6FmJLNkoZ6PLHOKQIGBbQHyw"
WHOLE = "hl:uEiA6I-h4ojz79jsieYNzRRlcOOlv7wpFl0gMEQDvBhRgDA"


def proof(created: str, domain: str, value: str, method: str) -> dict[str, str]:
    fixed = {"proofPurpose": "assertionMethod", "type": "Ed25519Signature2020"}
    return {"created": created, "domain": domain, "proofValue": value, "verificationMethod": method, **fixed}


CREDENTIAL = {
    "@context": [
        "https://www.w3.org/2018/credentials/v1",
        "https://w3id.org/activityanchors/v1",
        "https://w3id.org/security/suites/ed25519-2020/v1",
    ],
    "credentialSubject": {
        "anchor": "hl:uEiBSN1ohlVzMayIU-ib1-TZtGnKht0t-K1GfJI4wx-WfWw",
        "href": ORIGINAL,
        "profile": "https://w3id.org/orb#v0",
        "rel": "linkset",
        "type": ["AnchorLink"],
    },
    "id": "https://orb.domain2.com/vc/57cf856f-e489-47dd-8f4e-65ea9524d6ea",
    "issuanceDate": "2022-09-19T14:14:02.112016149Z",
    "issuer": "https://orb.domain2.com",
    "proof": [
        proof(
            "2022-09-19T14:14:02.112971919Z",
            "https://orb.domain2.com",
            "z4XcMUCpMULRSEYWZkTpvCyyraR6fJ3YonufK5Feg5pxFHgTKazTbaLXZkpSsJFj2PVWjnx9JPU2z8ASbrPmiTkDi",
            "did:web:orb.domain2.com#VqRaibhCQnw06DZBffoiKPpNKTWYpVDsSk_PkQ9jPSk",
        ),
        proof(
            "2022-09-19T14:14:02.198Z",
            "http://orb.vct:8077/maple2020",
            "z2984NKGGSaSzzypMyA4DogiB7gz16nZvs3aHd1eEkg9SynNHWTt7ccFguwdPc6usKGxxhaXhdRvxwpPEo4arWRCq",
            "did:web:orb.domain1.com#U8MGBdXnSkT35IBqx21m_ODAC0z3Z4sgLtwSL3JGRKQ",
        ),
    ],
    "type": ["VerifiableCredential", "AnchorCredential"],
}


def example(**options: Any) -> bytes:
    """The example of the documentation."""
    batch = OperationBatch(5, [Operation(OperationType.UPDATE, suffix) for suffix in SUFFIXES])
    before = PreviousAnchor(parse_hashlink(UP), parse_hashlink(UP))
    author = "did:web:orb.domain2.com:services:orb"
    previous = dict.fromkeys(SUFFIXES, before)
    return write_linkset(batch, f"5.{VIA}", previous, ORB, author=author, replies=[CREDENTIAL], **options)


def test_the_example_of_the_documentation_is_written_byte_for_byte() -> None:
    assert link_to(example()).bare == WHOLE


def test_the_example_of_the_documentation_is_read() -> None:
    found = read_linkset(example())
    assert found == read_linkset(example(zipped=True)), "the same, however the documents are embedded"
    assert (found.author, found.core_index.text) == ("did:web:orb.domain2.com:services:orb", VIA)
    assert found.anchor == "5.hl:uEiBSN1ohlVzMayIU-ib1-TZtGnKht0t-K1GfJI4wx-WfWw"
    assert [item.did.rpartition(":")[2] for item in found.items] == SUFFIXES
    assert {item.previous for item in found.items} == {found.previous[0].bare}
    assert [link.text for link in found.previous] == [UP]
    assert found.replies == (CREDENTIAL,)


def test_a_hashlink_says_the_same_as_a_cid_and_has_its_links() -> None:
    link = parse_hashlink(UP)
    assert link.text == UP
    assert link.links[1] == f"ipfs://{link.cid}", "the example itself names both"
    assert link_to(b"content").names(b"content") and not link_to(b"content").names(b"other")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), max_size=30))
def test_any_links_survive_a_hashlink(links: list[str]) -> None:
    link = link_to(b"x", links)
    if len(link.text) <= 2_000:
        assert parse_hashlink(link.text) == link


@pytest.mark.parametrize("length", [0, 23, 24, 255, 256, 257])
def test_links_of_a_length_at_which_cbor_takes_another_byte_survive(length: int) -> None:
    link = link_to(b"x", ["x" * length])
    assert parse_hashlink(link.text) == link


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hl:",
        "hl:u",
        UP[3:],
        UP.replace(":uoQ", ":oQ"),
        UP[:-4],
        UP + "AAAA",
        UP + ":u",
        "hl:zQm",
        "hl:u" + "A" * 46,
    ],
)
def test_what_is_no_hashlink_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_hashlink(text)
    assert refused.value.code == "hashlink"


@given(st.data())
def test_no_changed_byte_of_a_linkset_goes_unnoticed_or_does_more_than_refuse(data: st.DataObject) -> None:
    whole = bytearray(example())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        found = read_linkset(bytes(whole))
    except BatchFileError:
        return
    changed, good = msgspec.to_builtins(found), msgspec.to_builtins(read_linkset(example()))
    for value in (changed, good):
        value.pop("replies")  # what witnesses say is signed by them
    changed["core_index"].pop("links"), good["core_index"].pop("links")
    for value in (changed, good):
        value["previous"] = [link["multihash"] for link in value["previous"]]  # where a file lies proves nothing
    assert changed == good


def test_a_bomb_in_a_data_uri_is_not_unpacked() -> None:
    context = msgspec.json.decode(example())["linkset"][0]
    bomb = base64.b64encode(gzip.compress(b" " * 30_000_000)).decode()
    context["original"][0]["href"] = f"data:application/gzip;base64,{bomb}"
    with pytest.raises(BatchFileError, match=r"more than [0-9,]+ bytes after decompression"):
        read_linkset(canonical({"linkset": [context]}))


def test_a_data_uri_with_a_character_outside_ascii_is_refused() -> None:
    context = msgspec.json.decode(example())["linkset"][0]
    context["original"][0]["href"] = "data:application/gzip;base64,é"
    with pytest.raises(BatchFileError, match="original link of the anchor linkset is not valid base64"):
        read_linkset(canonical({"linkset": [context]}))


@pytest.mark.parametrize(
    ("relation", "text"),
    [("original", "one link context|object"), ("related", "one link context|the hash of 'original'")],
)
def test_a_linkset_without_a_part_or_with_one_of_another_is_refused(relation: str, text: str) -> None:
    context = msgspec.json.decode(example())["linkset"][0]
    context[relation][0]["href"] = "data:application/json,%7B%7D"
    with pytest.raises(BatchFileError, match=text):
        read_linkset(canonical({"linkset": [context]}))


def test_a_reply_to_another_linkset_is_told_with_what_was_expected() -> None:
    linkset = msgspec.json.decode(example())
    (reply,) = linkset["linkset"][0]["replies"]
    changed = {**CREDENTIAL, "credentialSubject": {"anchor": "hl:a", "href": "hl:b"}}
    reply["href"] = "data:application/json," + urllib.parse.quote(json.dumps(changed))
    with pytest.raises(
        BatchFileError, match=r"anchor 'hl:a' and href 'hl:b'; expected: anchor 'hl:uEiBSN1.* href 'hl:"
    ):
        read_linkset(json.dumps(linkset).encode())


def test_an_operation_without_a_known_anchor_before_it_is_named() -> None:
    batch = OperationBatch(1, [Operation(OperationType.UPDATE, SUFFIXES[0])])
    with pytest.raises(BatchFileError, match=f"of the update operation on {SUFFIXES[0]} is unknown"):
        write_linkset(batch, f"1.{VIA}", {}, ORB, author="did:web:x")


def test_the_files_of_a_batch_may_be_named_by_hashlinks_where_the_network_has_them() -> None:
    person = DidOwner("linked")
    written = write_batch([person.create], ORB)
    files = {file.uri: file.data for file in written.files}
    linkset = read_linkset(
        write_linkset(written, written.anchor, {}, ORB, author="did:web:x", links=["https://x/cas/"])
    )
    assert linkset.items[0].did == f"did:orb:uAAA:{person.suffix}"

    def fetch(uri: str, _limit: int) -> bytes:
        if uri not in files:
            raise CasNotFoundError(uri)
        return files[uri]

    assert [operation.suffix for operation in read_batch(linkset.anchor, fetch, ORB).operations] == [person.suffix]
    with pytest.raises(CasNotFoundError):
        read_batch(linkset.anchor, fetch, SIDETREE)
    with pytest.raises(BatchFileError, match="invalid hashlink"):
        read_batch("1.hl:nonsense", fetch, ORB)


def test_a_hashlink_is_plain_data() -> None:
    assert HashLink(SUFFIXES[0]).text == f"hl:u{SUFFIXES[0]}"
