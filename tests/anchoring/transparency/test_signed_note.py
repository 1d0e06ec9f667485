from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import NoteError
from millstream.anchoring.transparency.signed_note import (
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    NoteSignature,
    SignedNote,
    SigningKey,
    VerifierKey,
    encode_note,
    parse_ledger_key,
    parse_note,
    parse_signing_key,
    parse_verifier_key,
    sign_note,
    verify_note,
)
from suite.sizes import examples, sized
from support.witnesses import TestWitness

SPECIFIED_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
SPECIFIED_NOTE = (
    "This is an example message.\n\n— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1E"
    "RYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
).encode()

KEY, OTHER = SigningKey("example.org/log", bytes(range(32))), SigningKey("example.org/other", bytes(32))
TEXT = "first line\n\nthird line, ä\n"

names = st.text(min_size=1, max_size=40).filter(lambda name: "+" not in name and not any(map(str.isspace, name)))
names = names.filter(lambda name: name.isprintable())
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\n"), max_size=200).map(
    lambda text: text + "\n"
)
signatures = st.builds(NoteSignature, names, st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=80))


def test_the_note_of_the_specification_is_verified_with_its_key() -> None:
    key = parse_verifier_key(SPECIFIED_KEY)
    assert str(key) == SPECIFIED_KEY
    assert [each.key for each in verify_note(parse_note(SPECIFIED_NOTE), [key])] == [key]


def test_a_signed_text_is_verified_with_the_published_key_alone() -> None:
    data = encode_note(sign_note(TEXT, [KEY, OTHER]))
    key = parse_verifier_key(str(KEY.verifier_key))
    assert parse_note(data).text == TEXT
    assert [each.key.name for each in verify_note(parse_note(data), [key])] == ["example.org/log"]
    assert len(verify_note(parse_note(data), [key, OTHER.verifier_key])) == 2


@given(texts, st.lists(signatures, min_size=1, max_size=5))
@examples(ci=100, long=2000)
def test_a_note_reads_back_as_it_was_written(text: str, lines: list[NoteSignature]) -> None:
    note = SignedNote(text, tuple(lines))
    assert parse_note(encode_note(note)) == note


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@examples(ci=100, long=5000)
def test_any_other_bytes_are_refused_with_a_note_error(data: bytes) -> None:
    for given_bytes in (data, data + encode_note(sign_note(TEXT, [KEY])), encode_note(sign_note(TEXT, [KEY])) + data):
        try:
            note = parse_note(given_bytes)
        except NoteError:
            continue
        assert encode_note(note) == given_bytes  # what is read has one spelling


def test_flipping_any_byte_of_a_note_makes_it_bad() -> None:
    draw, data = random.Random(1), encode_note(sign_note(TEXT, [KEY]))
    for place in range(len(data)):
        for bits in sized(quick=[1 << draw.randrange(8)], ci=range(1, 256, 5), long=range(1, 256)):
            changed = data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
            with pytest.raises(NoteError):
                verify_note(parse_note(changed), [KEY.verifier_key])


def test_a_signature_of_an_unknown_key_is_ignored_also_under_a_known_name() -> None:
    note, strange = sign_note(TEXT, [KEY]), NoteSignature("example.org/log", b"\x00\x01\x02\x03", b"anything")
    both = SignedNote(TEXT, (strange, *note.signatures, NoteSignature("x", note.signatures[0].key_id, b"y" * 3000)))
    assert len(verify_note(parse_note(encode_note(both)), [KEY.verifier_key])) == 1


def test_a_known_key_whose_signature_fails_makes_the_note_bad() -> None:
    good, wrong = sign_note(TEXT, [KEY, OTHER]), sign_note("another text\n", [KEY])
    for lines in ((*good.signatures, *wrong.signatures), (*wrong.signatures, *good.signatures)):
        with pytest.raises(NoteError, match=r"example.org/log\+.* does not match the signed text"):
            verify_note(SignedNote(TEXT, lines), [KEY.verifier_key, OTHER.verifier_key])


def test_a_note_without_a_signature_of_a_trusted_key_names_both_keys() -> None:
    with pytest.raises(
        NoteError, match=r"signed by example.org/other\+\w+, but not by the trusted key example.org/log"
    ):
        verify_note(sign_note(TEXT, [OTHER]), [KEY.verifier_key])


def test_sixteen_signatures_are_read_and_too_many_are_refused() -> None:
    for count in (16, MAX_SIGNATURES):
        keys = [SigningKey(f"k{number}", bytes([number] * 32)) for number in range(count)]
        assert len(verify_note(parse_note(encode_note(sign_note(TEXT, keys))), [keys[-1].verifier_key])) == 1
    many = SignedNote(TEXT, sign_note(TEXT, [KEY]).signatures * (MAX_SIGNATURES + 1))
    with pytest.raises(NoteError, match="65 signatures; the limit is 64"):
        parse_note(encode_note(many))
    with pytest.raises(NoteError, match="more than"):
        parse_note(b"x" * MAX_NOTE_BYTES + encode_note(sign_note(TEXT, [KEY])))


def test_a_cosignature_counts_with_its_time_and_only_for_its_text() -> None:
    witness, note = TestWitness("witness.example/w1"), sign_note(TEXT, [KEY])
    cosigned = parse_note(encode_note(witness.cosign(note, 1_700_000_000)))
    found = verify_note(cosigned, [KEY.verifier_key, parse_verifier_key(str(witness.key))])
    assert [(each.key.name, each.time) for each in found] == [
        ("example.org/log", None), ("witness.example/w1", 1_700_000_000)
    ]  # fmt: skip
    for at in (0, 7, 8, 71):
        last = cosigned.signatures[-1]
        value = last.value[:at] + bytes([last.value[at] ^ 1]) + last.value[at + 1 :]
        with pytest.raises(NoteError, match=r"witness.example/w1"):
            verify_note(SignedNote(TEXT, (NoteSignature(last.name, last.key_id, value),)), [witness.key])
    with pytest.raises(NoteError):
        verify_note(SignedNote(TEXT, (NoteSignature(witness.key.name, witness.key.key_id, b"short"),)), [witness.key])


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "is invalid: expected"),
        ("example.com/foo", "is invalid: expected"),
        ("example.com/foo+530d903A+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "is invalid: expected"),
        ("exa mple+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "is invalid: expected"),
        ("example.com/fob+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "key id does not match"),
        ("example.com/foo+530d903b+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "key id does not match"),
        ("example.com/foo+530d903a+BukyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "type 0x06"),
        ("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2=", "not base64"),
        ("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4", "an Ed25519 key has 32"),
        ("example.com/foo+530d903a+", "type 0x00"),
    ],
)  # fmt: skip
def test_a_verifier_key_that_cannot_be_used_says_why(key: str, reason: str) -> None:
    with pytest.raises(NoteError, match=reason):
        parse_verifier_key(key)


def test_a_private_key_reads_back_and_is_not_shown() -> None:
    assert parse_signing_key(KEY.encode()) == KEY
    assert "seed" not in repr(KEY) and repr(KEY.seed) not in repr([KEY])
    with pytest.raises(NoteError) as error:
        parse_signing_key(KEY.encode()[:-1] + "A")
    assert KEY.encode()[-20:-2] not in str(error.value)


@pytest.mark.parametrize("begin", ["", " ", '"private_key": "'])
def test_a_private_key_given_as_a_verifier_key_is_named_and_not_shown(begin: str) -> None:
    private = SigningKey("x", bytes(range(32))).encode()
    with pytest.raises(NoteError, match="found a private key") as error:
        parse_verifier_key(begin + private)
    assert private.split("+")[-1][:8] not in str(error.value)
    with pytest.raises(NoteError, match=r"'x\+\w{8}' is damaged") as error:
        parse_verifier_key(private.removeprefix("PRIVATE+KEY+"))
    assert private.split("+")[-1][:8] not in str(error.value)


def test_the_key_of_a_ledger_is_not_that_of_a_witness() -> None:
    assert parse_ledger_key(str(KEY.verifier_key)) == KEY.verifier_key
    with pytest.raises(NoteError, match="is the key of a witness"):
        parse_ledger_key(str(TestWitness("witness.example/w1").key))


def test_points_of_small_order_are_no_keys_in_any_encoding() -> None:
    """All y whose point, doubled three times, is the neutral one, also y + p, with both signs."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def doubled(y: int) -> int:
        x2 = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        return (y * y + x2) * pow(1 - d * x2 * y * y, -1, p) % p

    order_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    small = [0, 1, p - 1, order_8, p - order_8]
    assert all(doubled(doubled(doubled(y))) == 1 for y in small)
    for y in [*small, p, p + 1]:
        for sign in (0, 1 << 255):
            for kind in (1, 4):
                key = VerifierKey("example.org/log", kind, (y | sign).to_bytes(32, "little"))
                with pytest.raises(NoteError, match="is not safe"):
                    parse_verifier_key(str(key))
