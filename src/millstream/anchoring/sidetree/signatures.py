"""Signed payloads: compact JWS over the bytes as they came (RFC 7515; Sidetree v1.0, "JSON Web Signatures")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from millstream.anchoring.sidetree.encoding import canonical, decode, encode
from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.javascript import decode_base64
from millstream.anchoring.sidetree.keys import PrivateKey, algorithm_of, low_s, verifier
from millstream.anchoring.sidetree.profile import Profile
from millstream.anchoring.sidetree.reference_json import decode_json, decode_native, parses_alike

_LONGEST_KEPT = 4_096
_LONGEST_HEADER_KEPT = 256


class CompactJws(msgspec.Struct, frozen=True, gc=False):
    """A compact JWS: its text, the header's algorithm, and the payload as an object. Nothing has been verified."""

    text: str
    algorithm: str
    payload: Mapping[str, Any]

    @property
    def normalized(self) -> str:
        """The JWS with its signature in the one spelling that stands for all others of the same signature.

        Anybody can write an ECDSA signature with the other S, and base64url with other bits behind its end.
        """
        message, _, signature = self.text.rpartition(".")
        return f"{message}.{encode(low_s(self.algorithm, decode_base64(signature)))}"

    def verifies_with(self, jwk: Mapping[str, Any]) -> bool:
        """Whether the signature is one of *jwk* (checked by :func:`~millstream.anchoring.sidetree.keys.check_key`)."""
        if algorithm_of(jwk) != self.algorithm:
            return False
        holds = _holds if len(self.text) <= _LONGEST_KEPT else _holds.__wrapped__
        return holds(self.text, jwk["crv"], jwk["x"], jwk.get("y", ""))


@lru_cache(maxsize=8192)
def _holds(text: str, curve: str, x: str, y: str) -> bool:
    """Whether the JWS *text* is signed by a key. An operation is examined when it is taken, cut and observed."""
    message, _, signature = text.rpartition(".")
    try:
        return verifier(curve, x, y)(decode_base64(signature), message.encode("ascii"))
    except RequestError:
        return False


def clear_signature_cache() -> None:
    """Forget verified signatures, so that all are verified again: for benchmarks."""
    _holds.cache_clear()


def split_jws(text: object) -> Sequence[str]:
    """Header, payload and signature of the compact JWS *text*, none of them empty. Raises :class:`RequestError`."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) != 3 or not all(parts):
        raise RequestError("signed_data_invalid", "signedData must be a compact JWS: header.payload.signature")
    return parts


def read_jws(text: str) -> CompactJws:
    """The compact JWS *text*, which was checked when it was taken. Raises :class:`ValueError` if it never was."""
    header, payload, _ = text.split(".")
    algorithm = _algorithm(header) if len(header) <= _LONGEST_HEADER_KEPT else _algorithm.__wrapped__(header)
    return CompactJws(text, algorithm, decode_json(decode_base64(payload)))


def parse_jws(text: object, profile: Profile) -> CompactJws:
    """The compact JWS *text*. Raises :class:`RequestError` where its form or header is not allowed."""
    if not isinstance(text, str):
        raise RequestError("signed_data_invalid", "signedData must be a string, a compact JWS")
    if len(text) > (limit := 4 * profile.max_operation_bytes):
        raise RequestError("signed_data_invalid", f"signedData has {len(text):,} characters; the limit is {limit:,}")
    head, body, signature = split_jws(text)
    header = _header(head) if len(head) <= _LONGEST_HEADER_KEPT else _header.__wrapped__(head)
    payload = _object(decode(body), "payload")
    decode(signature)
    algorithm = header.get("alg")
    if (
        not isinstance(algorithm, str)
        or algorithm not in profile.algorithms
        or not header.keys() <= profile.header_members
    ):
        allowed, members = (", ".join(sorted(names)) for names in (profile.algorithms, profile.header_members))
        raise RequestError(
            "signed_data_invalid", f"the JWS header must contain alg, one of {allowed}, and no members except {members}"
        )
    if not isinstance(header.get("kid", ""), str):
        raise RequestError("signed_data_invalid", "the kid in the JWS header must be a string")
    return CompactJws(text, algorithm, payload)


def sign(payload: Mapping[str, Any], key: PrivateKey) -> str:
    """*payload* as a compact JWS of *key*."""
    message = f"{encode(canonical({'alg': key.algorithm}))}.{encode(canonical(payload))}"
    return f"{message}.{encode(key.sign(message.encode('ascii')))}"


@lru_cache(maxsize=256)
def _algorithm(header: str) -> str:
    """The algorithm in the *header* of a JWS that was checked. Raises :class:`ValueError` if it never was."""
    return str(decode_native(decode_base64(header)).get("alg", ""))


@lru_cache(maxsize=256)
def _header(text: str) -> Mapping[str, Any]:
    """The header that *text* encodes: most signers write the same. Raises :class:`RequestError`."""
    return _object(decode(text), "header")


def _object(data: bytes, name: str) -> dict[str, Any]:
    """The object in *data*, which every parser must read alike: readers differ in what they make of odd JSON."""
    try:
        if not parses_alike(data):
            raise RequestError(
                "signed_data_invalid",
                f"the {name} of signedData has a \\u escape, a member __proto__, many blanks, or a long number or one "
                "with a signed exponent, which parsers read differently: encode it as canonical JSON (RFC 8785) "
                "without these",
            )
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("signed_data_invalid", f"the {name} of signedData is not JSON") from error
    if not isinstance(value, dict):
        raise RequestError("signed_data_invalid", f"the {name} of signedData must be an object")
    return value
