"""Asking a real time-stamping authority (``openssl ts``), and what is refused of the answers of a dishonest one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from rfc3161_client import decode_timestamp_response

from millstream.anchoring.errors import HttpError, TimestampError, TimestampRefusalError
from millstream.anchoring.http_reader import HttpReader
from millstream.anchoring.timestamps import TimestampClient, TrustedAuthorities, parse_authorities, parse_token
from millstream.anchoring.timestamps.client import Digest
from millstream.anchoring.timestamps.token import MAX_TOKEN_BYTES
from millstream.core.clock import MICROSECONDS, SystemClock
from support.timestamp_authority import TimestampAuthority, TimestampRoot, place_of_time

DOCUMENT = (
    b"example.org/anchors\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n\xe2\x80\x94 example.org/anchors AAAA\n"
)


@pytest.fixture
def root(tmp_path: Path) -> TimestampRoot:
    return TimestampRoot(tmp_path / "authority")


@pytest.fixture
def authority(root: TimestampRoot) -> Iterator[TimestampAuthority]:
    with TimestampAuthority(root) as running:
        yield running


@pytest.fixture
def trusted(root: TimestampRoot) -> TrustedAuthorities:
    return TrustedAuthorities([root.certificate])


@pytest.fixture
def client(authority: TimestampAuthority, trusted: TrustedAuthorities) -> TimestampClient:
    return TimestampClient(authority.url, trusted)


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_a_token_says_when_and_by_whom_a_document_was_stamped(
    client: TimestampClient, trusted: TrustedAuthorities, digest: Digest
) -> None:
    before = SystemClock().now()
    token = client.stamp(DOCUMENT, digest)
    assert (token.digest, token.authority) == (digest, "CN=Example TSA")
    assert before < token.time < SystemClock().now() + 2 * MICROSECONDS, "the second that is cut off, and the accuracy"
    assert token.ends_at == datetime(2079, 12, 17, tzinfo=UTC).timestamp() * MICROSECONDS
    assert trusted.verify(token.data, DOCUMENT) == token


def test_openssl_verifies_our_tokens(client: TimestampClient, authority: TimestampAuthority, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(client.stamp(DOCUMENT, "sha256").data)
    (tmp_path / "document").write_bytes(DOCUMENT)
    words = [
        "openssl",
        "ts",
        "-verify",
        "-token_in",
        "-in",
        "token",
        "-data",
        "document",
        "-CAfile",
        authority.root.path,
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Verification: OK" in done.stdout, done.stderr


def test_a_token_for_another_document_does_not_hold(client: TimestampClient, trusted: TrustedAuthorities) -> None:
    token = client.stamp(DOCUMENT, "sha256")
    with pytest.raises(TimestampError, match="is a time stamp of other data"):
        trusted.verify(token.data, DOCUMENT.replace(b"\n1\n", b"\n2\n"))


def test_a_forged_token_does_not_hold(client: TimestampClient, trusted: TrustedAuthorities) -> None:
    """The time is what an attacker wants to change: it is signed."""
    token = client.stamp(DOCUMENT, "sha256")
    time = place_of_time(token.data)
    forged = token.data[:time] + b"2021" + token.data[time + 4 :]
    assert parse_token(forged).time < token.time - 4 * 365 * 86_400 * MICROSECONDS
    with pytest.raises(TimestampError, match="is not valid: digest failure"):
        trusted.verify(forged, DOCUMENT)


def test_a_token_of_an_authority_that_is_not_trusted_is_refused(authority: TimestampAuthority, tmp_path: Path) -> None:
    other = TimestampRoot(tmp_path / "other", "Other Root")
    with pytest.raises(TimestampError, match="CN=Example TSA is not valid: unable to get local issuer certificate"):
        TimestampClient(authority.url, TrustedAuthorities([other.certificate])).stamp(DOCUMENT, "sha256")
    assert TimestampClient(authority.url).stamp(DOCUMENT, "sha256").authority == "CN=Example TSA", "nobody to compare"


def test_the_answer_to_another_request_is_refused(authority: TimestampAuthority, client: TimestampClient) -> None:
    kept: list[bytes] = []
    authority.answer = lambda _, real: (200, kept.append(real) or kept[0])  # type: ignore[func-returns-value]
    client.stamp(DOCUMENT, "sha256")
    with pytest.raises(TimestampError, match="the nonce in the response of the authority is not that of the request"):
        client.stamp(DOCUMENT, "sha256")


def test_a_rejection_is_shown_in_words(authority: TimestampAuthority, client: TimestampClient) -> None:
    authority.answer = lambda request, _: (200, authority.reply(request[:-3]))
    with pytest.raises(
        TimestampRefusalError, match="the authority answered 'rejection': Bad request format or system error"
    ):
        client.stamp(DOCUMENT, "sha256")


def test_an_authority_that_does_not_take_the_digest_rejects_it(root: TimestampRoot) -> None:
    with (
        TimestampAuthority(root, "Old TSA", digests="sha512") as old,
        pytest.raises(TimestampRefusalError, match="Message digest algorithm is not supported"),
    ):
        TimestampClient(old.url).stamp(DOCUMENT, "sha256")


FAULTS: list[tuple[Callable[[bytes, bytes], tuple[int, bytes]], type[Exception], str]] = [
    (lambda _, __: (500, b"sorry"), HttpError, "status 500"),
    (lambda _, __: (200, bytes(MAX_TOKEN_BYTES * 2)), HttpError, "has more than"),
    (lambda _, __: (200, b""), TimestampError, "answer of .* is not valid"),
    (lambda _, __: (200, b"<html>no</html>"), TimestampError, "answer of .* is not valid"),
    (lambda _, real: (200, real[:-1]), TimestampError, "answer of .* is not valid"),
    (lambda _, __: (200, bytes.fromhex("30053003020100")), TimestampError, "answer of .* is not valid"),
]


@pytest.mark.parametrize(("answer", "error", "said"), FAULTS)
def test_an_answer_that_is_no_token_is_an_error(
    authority: TimestampAuthority,
    client: TimestampClient,
    answer: Callable[[bytes, bytes], tuple[int, bytes]],
    error: type[Exception],
    said: str,
) -> None:
    authority.answer = answer
    with pytest.raises(error, match=said):
        client.stamp(DOCUMENT, "sha256")


def test_an_authority_that_is_away_is_an_error(root: TimestampRoot) -> None:
    with TimestampAuthority(root) as running:
        url = running.url
    with pytest.raises(HttpError, match="refused"):
        TimestampClient(url, reader=HttpReader(seconds=2)).stamp(DOCUMENT, "sha256")


def test_the_certificate_must_be_for_time_stamps(root: TimestampRoot, authority: TimestampAuthority) -> None:
    """Another certificate of the same key, issuer and number, for code signing: everything but its usage holds."""
    good = authority.certificate
    der = good.public_bytes(Encoding.DER)
    key = _key_of(authority)
    other = b""
    while len(other) != len(der):  # signatures differ in length by a byte or two
        usage, serial = (ExtendedKeyUsageOID.CODE_SIGNING,), good.serial_number
        other = root.issue(authority.name, usage=usage, key=key, serial=serial)[0].public_bytes(Encoding.DER)
    authority.answer = lambda _, real: (200, real.replace(der, other))
    for trusted in (None, TrustedAuthorities([root.certificate])):
        with pytest.raises(TimestampError, match=r"not for time stamps: .* use another one"):
            TimestampClient(authority.url, trusted).stamp(DOCUMENT, "sha256")


def test_a_second_certificate_of_the_signer_is_refused(root: TimestampRoot, tmp_path: Path) -> None:
    """Nobody signed it, and its end is later: it must not be taken for the one that verifies the signature."""
    stranger = TimestampRoot(tmp_path / "stranger")
    soon = datetime.now(UTC) + timedelta(hours=1)
    with TimestampAuthority(root, "Short TSA", end=soon) as short:
        token = TimestampClient(short.url).stamp(DOCUMENT, "sha256").data
        genuine = short.certificate.public_bytes(Encoding.DER)
        key, serial = _key_of(short), short.certificate.serial_number
        forged = stranger.issue("Short TSA", key=key, serial=serial)[0].public_bytes(Encoding.DER)
    both = _with_certificates(token, genuine, b"".join(sorted([genuine, forged])))
    with pytest.raises(TimestampError, match="has 2 certificates of its signer"):
        parse_token(both)
    with pytest.raises(TimestampError, match="has 0 certificates of its signer"):
        parse_token(_with_certificates(token, genuine, forged[:20] + bytes([forged[20] ^ 1]) + forged[21:]))


def test_certificates_that_cannot_be_trusted_are_refused(root: TimestampRoot, authority: TimestampAuthority) -> None:
    leaf = authority.certificate.public_bytes(Encoding.PEM)
    with pytest.raises(TimestampError, match="no root certificate"):
        parse_authorities(leaf)
    with pytest.raises(TimestampError, match="a file of certificates"):
        parse_authorities(b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    with pytest.raises(TimestampError, match="a file of certificates"):
        parse_authorities(b"")
    with pytest.raises(TimestampError, match="more than 1,048,576 bytes"):
        parse_authorities(bytes(2 << 20))
    der = root.certificate.public_bytes(Encoding.DER)
    token = TimestampClient(authority.url).stamp(DOCUMENT, "sha256")
    assert parse_authorities(der).verify(token.data, DOCUMENT) == token
    assert parse_authorities(leaf, root.path.read_bytes()).verify(token.data, DOCUMENT) == token


def test_a_root_of_the_same_name_does_not_hide_the_right_one(
    root: TimestampRoot, authority: TimestampAuthority, tmp_path: Path
) -> None:
    """A root that was renewed with a new key: readers have both certificates."""
    token = TimestampClient(authority.url).stamp(DOCUMENT, "sha256")
    roots = [TimestampRoot(tmp_path / f"root-{number}").certificate for number in range(3)]
    with pytest.raises(TimestampError, match="certificate signature failure"):
        TrustedAuthorities(roots).verify(token.data, DOCUMENT)
    for place in range(4):
        trusted = TrustedAuthorities([*roots[:place], root.certificate, *roots[place:]])
        assert trusted.verify(token.data, DOCUMENT) == token


def test_bytes_that_are_not_a_token_are_refused(client: TimestampClient) -> None:
    token = client.stamp(DOCUMENT, "sha256").data
    for data in (b"", b"\x30\x00", token[:-1], token + b"\0", bytes(MAX_TOKEN_BYTES + 1)):
        with pytest.raises(TimestampError):
            parse_token(data)


def test_the_accuracy_of_an_authority_counts(root: TimestampRoot) -> None:
    with TimestampAuthority(root, "Coarse TSA", accuracy="secs:90, millisecs:500, microsecs:250") as coarse:
        answers: list[bytes] = []
        coarse.answer = lambda _, real: (200, answers.append(real) or real)  # type: ignore[func-returns-value]
        token = TimestampClient(coarse.url).stamp(DOCUMENT, "sha256")
    at = decode_timestamp_response(answers[0]).tst_info.gen_time.timestamp() * MICROSECONDS
    assert token.time - at == 91_500_250


def _key_of(authority: TimestampAuthority):  # type: ignore[no-untyped-def]
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key((authority.folder / "tsa.key").read_bytes(), None)


def _with_certificates(token: bytes, old: bytes, new: bytes) -> bytes:
    """*token* with the certificates *new* in place of *old*, and all lengths around them corrected."""
    grown = token.replace(old, new)
    change = len(new) - len(old)
    at, ends = token.index(old), [0, 4 + 11, 4 + 11 + 4]
    result = bytearray(grown)
    for place in (*ends, at - 4):
        assert token[place + 1] == 0x82
        size = int.from_bytes(token[place + 2 : place + 4]) + change
        result[place + 2 : place + 4] = size.to_bytes(2)
    return bytes(result)
