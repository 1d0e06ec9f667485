from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import CheckpointError, NoteError, TrustPolicyError
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.policy import MAX_POLICY_BYTES, check_checkpoint, parse_policy, trusting
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from suite.sizes import examples
from support.altered import altered
from support.witnesses import TestWitness

LOG = SigningKey("example.org/log", bytes(range(32)))
X1, X2, X3, Y1, Y2 = (TestWitness(f"witness.example/{name}") for name in ("x1", "x2", "x3", "y1", "y2"))
TEXT = Checkpoint("example.org/log", 7, bytes(32)).text

TWO_LEVELS = f"""
# the example of the specification, with a tab, a comment, URLs and spaces at both ends
log {LOG.verifier_key} https://example.org/log
  witness X1 {X1.key}\t
witness X2 {X2.key} https://witness.example/x2
witness\tX3\t{X3.key}
group X-witnesses 2 X1 X2 X3

witness Y1 {Y1.key}
witness Y2 {Y2.key}
group Y-witnesses any Y1 Y2
group X-and-Y all X-witnesses Y-witnesses
quorum X-and-Y
"""


def signed(*witnesses: TestWitness) -> bytes:
    note = sign_note(TEXT, [LOG])
    for witness in witnesses:
        note = witness.cosign(note)
    return encode_note(note)


@pytest.mark.parametrize(
    ("witnesses", "trusted"),
    [
        ((), False),
        ((X1, X2), False),
        ((X1, Y1), False),
        ((X1, X1, Y1, Y2), False),
        ((X1, X3, Y2), True),
        ((Y1, X1, X2, X3), True),
    ],
)  # fmt: skip
def test_a_quorum_of_two_levels_counts_each_witness_once(witnesses: tuple[TestWitness, ...], trusted: bool) -> None:
    policy, data = parse_policy(TWO_LEVELS.encode()), signed(*witnesses)
    if trusted:
        found = check_checkpoint(data, policy)
        assert found.checkpoint.size == 7
        assert len(found.witnesses) == len(witnesses)
        assert found.signed_by == (str(LOG.verifier_key),)
    else:
        with pytest.raises(
            NoteError, match=r"too few witnesses signed .* the quorum 'X-and-Y' needs.*--require-quorum"
        ):
            check_checkpoint(data, policy)


def test_the_log_must_have_signed_also_where_all_witnesses_have() -> None:
    note = X1.cosign(sign_note(TEXT, [SigningKey("example.org/log", bytes(32))]))
    policy = parse_policy(f"log {LOG.verifier_key}\nwitness X1 {X1.key}\nquorum X1\n".encode())
    with pytest.raises(NoteError, match=r"not by the trusted key example.org/log"):
        check_checkpoint(encode_note(note), policy)


def test_a_ledger_that_the_policy_does_not_name_is_not_trusted() -> None:
    other = SigningKey("example.org/other", bytes(32)).verifier_key
    with pytest.raises(
        CheckpointError, match=r"belongs to the ledger .example.org/log., but the keys .* are of example.org/other"
    ):
        check_checkpoint(signed(), trusting([other]))
    assert check_checkpoint(signed(), trusting([other, LOG.verifier_key])).witnesses == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no quorum line"),
        ("log {log}", "no quorum line"),
        ("quorum X", "line 1 .*unknown witness or group 'X'"),
        ("quorum none\nquorum none", "line 2 .*a second quorum line"),
        ("quorum none none", "write `quorum <name>` or `quorum none`"),
        ("log\nquorum none", "write `log <verifier key>"),
        ("log {log} a b\nquorum none", "write `log <verifier key>"),
        ("log {log}\nlog {log}\nquorum none", "line 2 .*listed twice"),
        ("log nonsense\nquorum none", "is invalid: expected"),
        ("witness none {x1}\nquorum none", "line 1 .*the name 'none' is reserved: choose another name"),
        ("witness A {x1}\nwitness A {x2}\nquorum A", "line 2 .*'A' is already in use"),
        ("witness A {x1}\nwitness B {x1}\nquorum A", "line 2 .*listed twice"),
        ("witness A {log}\nquorum A", "not the key of a witness"),
        ("witness A {x1}\ngroup A all A\nquorum A", "'A' is already in use"),
        ("witness A {x1}\ngroup G 0 A\nquorum G", "members '0': write all, any, or 1 to 1"),
        ("witness A {x1}\ngroup G 2 A\nquorum G", "members '2': write all, any, or 1 to 1"),
        ("witness A {x1}\ngroup G +1 A\nquorum G", "write all, any, or 1 to 1"),
        ("witness A {x1}\ngroup G some A\nquorum G", "write all, any, or 1 to 1"),
        ("witness A {x1}\ngroup G all\nquorum G", "write `group"),
        ("witness A {x1}\ngroup G any A A\nquorum G", "'A' is already a member"),
        ("witness A {x1}\ngroup G any A\ngroup H any A\nquorum G", "line 3 .*'A' is already a member"),
        ("witness A {x1}\ngroup G any A none\nquorum G", "unknown witness or group 'none'"),
        ("group G any A\nwitness A {x1}\nquorum G", "line 1 .*unknown witness or group 'A'"),
        ("trust {log}\nquorum none", "unknown keyword 'trust'"),
        ("log {log}\r\nquorum none", "line 1 .*control character 0x0d: save the file with LF line ends"),
        ("log {log}\nquorum\x00 none", "line 2 .*control character 0x00: remove it"),
        ("log {x1}\nquorum none", "line 1 .*is the key of a witness"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_names_line_and_reason(text: str, reason: str) -> None:
    data = text.format(log=LOG.verifier_key, x1=X1.key, x2=X2.key).encode()
    with pytest.raises(TrustPolicyError, match=reason):
        parse_policy(data)


def test_names_are_compared_as_they_are_written_and_are_utf_8() -> None:
    kelvin = "\N{KELVIN SIGN}".encode()
    rows = [b"witness K %s" % str(X1.key).encode(), b"witness %s %s" % (kelvin, str(X2.key).encode())]
    rows += [b"witness \xc3\xa4 %s" % str(X3.key).encode(), b"# \x80 comment", b"quorum \xc3\xa4", b""]
    policy = parse_policy(b"\n".join([*rows, b"log " + str(LOG.verifier_key).encode()]))
    assert len(policy.witnesses) == 3
    assert check_checkpoint(signed(X3), policy).checkpoint.size == 7
    with pytest.raises(NoteError):
        check_checkpoint(signed(X1), policy)
    witness = str(X1.key).encode()
    for line in (
        b"log \xff+00000000+AAAA",
        b"witness a\xff " + witness,
        b"witness a " + witness + b"\ngroup \xff any a",
    ):
        with pytest.raises(TrustPolicyError, match="is not UTF-8"):
            parse_policy(line + b"\nquorum none\n")


def test_groups_of_groups_may_be_many() -> None:
    rows = [f"log {LOG.verifier_key}", f"witness w {X1.key}", "group g0 any w"]
    rows += [f"group g{number} all g{number - 1}" for number in range(1, 3000)]
    assert check_checkpoint(signed(X1), parse_policy("\n".join([*rows, "quorum g2999"]).encode())).witnesses == ("w",)


@given(
    st.binary(max_size=200)
    | altered(st.just(TWO_LEVELS.encode()), st.sampled_from([b"", b" ", b"\n", *TWO_LEVELS.encode().split()]))
)
@examples(ci=100, long=5000)
def test_any_bytes_are_a_policy_or_refused_with_a_reason(data: Any) -> None:
    try:
        policy = parse_policy(data)
    except TrustPolicyError:
        return
    assert policy.quorum == "none" or policy.quorum in policy.witnesses or policy.quorum in policy.groups


def test_a_policy_of_the_largest_size_is_read_at_once_and_a_larger_one_refused() -> None:
    lines, size = ["quorum none"], 0
    while size < MAX_POLICY_BYTES - 400:
        lines.append(f"witness {len(lines)} {TestWitness(f'w{len(lines)}').key}")
        size += len(lines[-1]) + 1
    started = time.process_time()
    policy = parse_policy("\n".join(lines).encode())
    assert time.process_time() - started < 1.5  # a comparison of all keys with all took 5 s
    assert len(policy.witnesses) == len(lines) - 1 > 2000
    with pytest.raises(TrustPolicyError, match="more than 262,144 bytes"):
        parse_policy("\n".join(lines).encode() + b"\n" + b"#" * 400)
