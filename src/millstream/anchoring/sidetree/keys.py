"""Public keys as JWKs: which are allowed, and what they can verify.

The drivers are optional (``pip install millstream[sidetree]``) and loaded when the first signature is checked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

from millstream.anchoring.sidetree.encoding import decode, encode
from millstream.anchoring.sidetree.errors import RequestError, SidetreeError
from millstream.anchoring.sidetree.javascript import decode_base64
from millstream.anchoring.sidetree.profile import Profile

_CURVES = {"secp256k1": ("EC", "ES256K"), "P-256": ("EC", "ES256"), "Ed25519": ("OKP", "EdDSA")}
"""The type of the keys of a curve, and their algorithm; coordinates have 32 bytes."""

_IN_32_BYTES = re.compile(r"[A-Za-z0-9_-]{43}")
_MEMBERS = {"EC": frozenset({"kty", "crv", "x", "y"}), "OKP": frozenset({"kty", "crv", "x"})}
_SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ORDERS = {"ES256K": _SECP256K1_ORDER, "ES256": _P256_ORDER}
_LOW_S = {algorithm: (order // 2).to_bytes(32, "big") for algorithm, order in _ORDERS.items()}
"""The highest S that is the smaller of two."""

Verify = Callable[[bytes, bytes], bool]
"""(signature, message) → whether it holds."""


def check_key(jwk: object, profile: Profile) -> Mapping[str, Any]:
    """*jwk*, which must be a public key with exactly the members of its kind. Raises :class:`RequestError`."""
    if not isinstance(jwk, dict):
        raise RequestError("key_invalid", "a public key must be an object (JWK)")
    curve = jwk.get("crv")
    if not isinstance(curve, str) or curve not in _CURVES or _CURVES[curve][1] not in profile.algorithms:
        allowed = ", ".join(name for name, (_, algorithm) in _CURVES.items() if algorithm in profile.algorithms)
        raise RequestError(
            "key_not_allowed", f"keys on curve {str(curve)[:20]!r} are not allowed in this network; allowed: {allowed}"
        )
    kind = _CURVES[curve][0]
    if jwk.keys() != _MEMBERS[kind]:
        _check_members(jwk, _MEMBERS[kind], profile)
    if jwk["kty"] != kind:
        raise RequestError(
            "key_invalid", f"a key on curve {curve} must have kty {kind!r}, not {str(jwk['kty'])[:20]!r}"
        )
    _check_coordinate(jwk["x"], "x", 32)
    if kind == "EC":
        _check_coordinate(jwk["y"], "y", 32)
    return jwk


def algorithm_of(jwk: Mapping[str, Any]) -> str:
    """The signature algorithm of a key that :func:`check_key` has passed."""
    return _CURVES[jwk["crv"]][1]


def low_s(algorithm: str, signature: bytes) -> bytes:
    """*signature* with the smaller of the two S that hold; as it is where *algorithm* has but one."""
    if algorithm not in _ORDERS or len(signature) != 64 or signature[32:] <= _LOW_S[algorithm]:
        return signature
    order, s = _ORDERS[algorithm], int.from_bytes(signature[32:], "big")
    return signature[:32] + (order - s).to_bytes(32, "big") if s < order else signature


def _check_members(jwk: Mapping[str, Any], members: AbstractSet[str], profile: Profile) -> None:
    optional = {"nonce"} if profile.key_nonce else set()
    # Orb writes an empty "y" into its Ed25519 keys, and it counts in their commitments.
    if profile.key_nonce and jwk.get("kty") == "OKP" and jwk.get("y") == "":
        optional.add("y")
    if not members <= set(jwk) or set(jwk) - members - optional:
        also = f", and optionally {', '.join(sorted(optional))}" if optional else ""
        raise RequestError(
            "key_invalid", f"a public key must have exactly the members {', '.join(sorted(members))}{also}"
        )
    if "nonce" in jwk:
        _check_coordinate(jwk["nonce"], "nonce", 16)


def _check_coordinate(value: object, name: str, size: int) -> None:
    if isinstance(value, str) and size == 32 and _IN_32_BYTES.fullmatch(value):
        return
    length = (size * 8 + 5) // 6
    if not isinstance(value, str) or len(value) != length or len(decode(value)) != size:
        raise RequestError(
            "key_invalid",
            f"{name!r} of a public key must be {size} bytes in base64url without padding, {length} characters",
        )


def verifier(curve: str, x: str, y: str) -> Verify:
    """What verifies the signatures of the key at *x* and *y*. Raises :class:`RequestError` where there is no point."""
    return _MAKERS[curve](decode_base64(x), decode_base64(y))


def _secp256k1(x: bytes, y: bytes) -> Verify:
    coincurve = _driver("coincurve")
    try:
        key = coincurve.PublicKey(b"\x04" + x + y).public_key
    except ValueError as error:
        raise RequestError("key_invalid", f"the public key with x {encode(x)!r} is not a point on secp256k1") from error
    return lambda signature, message: _secp256k1_holds(key, signature, message)


def _secp256k1_holds(key: Any, signature: bytes, message: bytes) -> bool:
    """libsecp256k1 refuses a high S, which JWS allows and the specification's own vectors have: it is turned low."""
    ecdsa = _driver("coincurve.ecdsa")
    try:
        compact = ecdsa.deserialize_compact(signature)
    except ValueError:  # not 64 bytes, or a number beyond the order of the curve
        return False
    context, digest = ecdsa.GLOBAL_CONTEXT.ctx, hashlib.sha256(message).digest()
    ecdsa.lib.secp256k1_ecdsa_signature_normalize(context, compact, compact)
    return bool(ecdsa.lib.secp256k1_ecdsa_verify(context, compact, digest, key))


def _p256(x: bytes, y: bytes) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), ec.SECP256R1())
    try:
        key = numbers.public_key()
    except ValueError as error:
        raise RequestError("key_invalid", f"the public key with x {encode(x)!r} is not a point on P-256") from error

    def holds(signature: bytes, message: bytes) -> bool:
        if len(signature) != 64:
            return False
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        try:
            key.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    return holds


def _ed25519(x: bytes, _y: bytes) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(x)

    def holds(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return holds


_MAKERS: dict[str, Callable[[bytes, bytes], Verify]] = {"secp256k1": _secp256k1, "P-256": _p256, "Ed25519": _ed25519}


@cache
def _driver(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise SidetreeError(
            f"signatures need {package}, which is not installed: run pip install 'millstream[sidetree]'"
        ) from error


class PrivateKey:
    """A private key that signs, for clients and tests: secp256k1 (``ES256K``) or Ed25519 (``EdDSA``)."""

    def __init__(self, jwk: Mapping[str, str]) -> None:
        """*jwk* is the private JWK: the members of the public key, and ``d``."""
        if jwk.get("crv") not in ("secp256k1", "Ed25519") or not isinstance(jwk.get("d"), str):
            raise RequestError("key_invalid", "a private key must be a JWK on secp256k1 or Ed25519 with the member 'd'")
        self.algorithm = _CURVES[jwk["crv"]][1]
        self._secret = decode(jwk["d"])
        self.public: dict[str, str] = {name: jwk[name] for name in ("kty", "crv", "x", "y") if name in jwk}
        if len(self._secret) != 32:
            raise RequestError("key_invalid", f"the member 'd' of the JWK has {len(self._secret):,} bytes, not 32")
        if self.public != _public_of(jwk["crv"], self._secret):
            raise RequestError("key_invalid", "the member 'd' of the JWK does not match its public members")

    @classmethod
    def from_secret(cls, curve: str, secret: bytes) -> PrivateKey:
        """The key whose secret is *secret* (32 bytes, from a source of randomness that cannot be guessed)."""
        return cls({**_public_of(curve, secret), "d": encode(secret)})

    @property
    def jwk(self) -> dict[str, str]:
        """The private JWK. Keep it where no other user can read it."""
        return {**self.public, "d": encode(self._secret)}

    def __repr__(self) -> str:
        return f"<PrivateKey {self.algorithm}>"

    def sign(self, message: bytes) -> bytes:
        """The signature of *message*, 64 bytes."""
        if self.algorithm == "EdDSA":
            return bytes(_ed25519_secret(self._secret).sign(message))
        return _compact(_driver("coincurve").PrivateKey(self._secret).sign(message))


def _compact(der: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    r, s = decode_dss_signature(der)
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _public_of(curve: str, secret: bytes) -> dict[str, str]:
    if curve == "Ed25519":
        return {"kty": "OKP", "crv": curve, "x": encode(_ed25519_secret(secret).public_key().public_bytes_raw())}
    point = _driver("coincurve").PrivateKey(secret).public_key.format(compressed=False)
    return {"kty": "EC", "crv": curve, "x": encode(point[1:33]), "y": encode(point[33:])}


def _ed25519_secret(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(secret)
