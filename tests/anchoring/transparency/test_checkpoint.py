from __future__ import annotations

import pytest

from millstream.anchoring.errors import CheckpointError, NoteError
from millstream.anchoring.transparency.checkpoint import Checkpoint, check_origin, parse_checkpoint, read_checkpoint
from millstream.anchoring.transparency.signed_note import SignedNote, SigningKey, encode_note, parse_note, sign_note

KEY = SigningKey("example.org/log", bytes(range(32)))
ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="


def test_the_checkpoint_of_the_specification_is_read() -> None:
    text = f"example.com/behind-the-sofa\n20852163\n{ROOT}\n"
    found = parse_checkpoint(SignedNote(text, ()))
    assert (found.origin, found.size, found.root.hex()[:8]) == ("example.com/behind-the-sofa", 20852163, "0ac5186a")
    assert found.text == text


def test_a_checkpoint_with_extension_lines_is_read_and_signed_as_it_is() -> None:
    text = f"example.org/log\n0\n{ROOT}\nextension one\ntwo\n"
    data = encode_note(sign_note(text, [KEY]))
    found = read_checkpoint(data, "example.org/log", [KEY.verifier_key])
    assert (found.size, found.extensions, found.text) == (0, ("extension one", "two"), text)


@pytest.mark.parametrize(
    "text",
    [
        "example.org/log\n1\n",
        f"\n1\n{ROOT}\n",
        f"example.org/log\n01\n{ROOT}\n",
        f"example.org/log\n-1\n{ROOT}\n",
        f"example.org/log\n1 \n{ROOT}\n",
        f"example.org/log\n٣\n{ROOT}\n",
        f"example.org/log\n\n{ROOT}\n",
        f"example.org/log\n9223372036854775808\n{ROOT}\n",
        f"example.org/log\n{'9' * 5000}\n{ROOT}\n",
        f"example.org/log\n1\n{ROOT[:-1]}\n",
        "example.org/log\n1\nAAAA\n",
        f"example.org/log\n1\n{ROOT}\n\nextension\n",
    ],
)  # fmt: skip
def test_what_is_not_a_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        parse_checkpoint(SignedNote(text, ()))


def test_a_checkpoint_of_another_ledger_or_key_is_refused() -> None:
    data = encode_note(sign_note(Checkpoint("example.org/other", 3, bytes(32)).text, [KEY]))
    assert parse_checkpoint(parse_note(data)).size == 3
    with pytest.raises(CheckpointError, match=r"belongs to the ledger 'example.org/other', not to 'example.org/log'"):
        read_checkpoint(data, "example.org/log", [KEY.verifier_key])
    with pytest.raises(NoteError, match="not by the trusted key"):
        read_checkpoint(data, "example.org/other", [SigningKey("example.org/log", bytes(32)).verifier_key])


@pytest.mark.parametrize(
    "origin", ["", "https://example.org/log", "a b", "a+b", "a\u00a0b", "a\nb", "x" * 256, "a\u202eb"]
)
def test_an_origin_is_a_url_without_scheme_spaces_and_plus(origin: str) -> None:
    with pytest.raises(CheckpointError, match="invalid origin"):
        check_origin(origin)
    assert check_origin("example.org/log:8080/ä") == "example.org/log:8080/ä"
