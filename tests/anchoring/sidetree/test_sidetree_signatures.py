"""Signatures and base64url at the edges of what their fast paths take."""

from __future__ import annotations

import sys

import pytest

from millstream.anchoring.sidetree import SIDETREE, RequestError, keys
from millstream.anchoring.sidetree.encoding import decode, encode
from millstream.anchoring.sidetree.errors import SidetreeError
from millstream.anchoring.sidetree.javascript import decode_base64
from millstream.anchoring.sidetree.keys import PrivateKey, verifier
from millstream.anchoring.sidetree.signatures import parse_jws, sign
from millstream.testing.dids import secret_key

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def _both(signature: bytes) -> tuple[bytes, bytes]:
    """*signature* with each of the two S that hold."""
    s = int.from_bytes(signature[32:], "big")
    return signature, signature[:32] + (ORDER - s).to_bytes(32, "big")


def _messages_by_first_bytes(key: PrivateKey) -> dict[tuple[bool, bool], bytes]:
    """Signed messages by whether R begins with a zero byte, and whether it begins with a set bit."""
    cases: dict[tuple[bool, bool], bytes] = {}
    for number in range(3_000):
        message = b"%d" % number
        first = key.sign(message)[0]
        cases.setdefault((first == 0, first >= 0x80), message)
    return cases


def test_signatures_verify_whatever_bytes_their_numbers_begin_with() -> None:
    key = secret_key("edges")
    verify = verifier("secp256k1", key.public["x"], key.public["y"])
    cases = _messages_by_first_bytes(key)
    assert set(cases) == {(True, False), (False, False), (False, True)}
    for message in cases.values():
        for signature in _both(key.sign(message)):
            assert verify(signature, message)
            assert not verify(signature, message + b"!")


@pytest.mark.parametrize("number", [0, ORDER, ORDER + 1, 2**256 - 1])
def test_numbers_outside_the_order_of_the_curve_are_no_signature(number: int) -> None:
    key = secret_key("edges")
    verify = verifier("secp256k1", key.public["x"], key.public["y"])
    signature, outside = key.sign(b"message"), number.to_bytes(32, "big")
    assert not verify(outside + signature[32:], b"message")
    assert not verify(signature[:32] + outside, b"message")


@pytest.mark.parametrize("text", ["QUI", "QUJD", "QUJDRA", "-_-_", ""])
def test_base64url_is_decoded_alike_by_both_decoders(text: str) -> None:
    assert decode(text) == decode_base64(text)
    assert encode(decode(text)) == text


@pytest.mark.parametrize(
    ("text", "lenient"),
    [("QUJD+/", b"ABC\xfb"), ("QU=JD", b"A"), ("QU JD", b"ABC"), ("Q", b""), ("QUé", b"A"), ("QUJD\n", b"ABC")],
)
def test_only_the_lenient_decoder_takes_what_is_not_base64url(text: str, lenient: bytes) -> None:
    assert decode_base64(text) == lenient
    with pytest.raises(RequestError, match="base64url") as refused:
        decode(text)
    assert text != "Q" or "it has 1 character, but the length cannot be 1 more than a multiple of 4" in str(
        refused.value
    )


def test_a_header_seen_before_is_checked_against_each_network_anew() -> None:
    text = sign({"a": "b"}, secret_key("header"))
    assert parse_jws(text, SIDETREE).algorithm == "ES256K"
    only_edwards = type(SIDETREE)("other", algorithms=frozenset({"EdDSA"}))
    with pytest.raises(RequestError, match="header"):
        parse_jws(text, only_edwards)


@pytest.mark.parametrize("module", ["coincurve", "coincurve.ecdsa"])
def test_a_missing_package_is_told_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    told = r"need coincurve, which is not installed: run pip install 'millstream\[sidetree\]'"
    with pytest.raises(SidetreeError, match=told):
        keys._driver.__wrapped__(module)
