"""Our reading of JSON and the reference implementation's, on random texts: most of them are damaged."""

from __future__ import annotations

import json
import random

import pytest
from reference.hostile import TOKENS
from reference.implementation import ReferenceImplementation

from millstream.anchoring.sidetree.javascript import stringify
from millstream.anchoring.sidetree.reference_json import ReferenceJsonError, decode_json
from suite.sizes import sized

TEXTS = sized(quick=2_000, ci=10_000, long=100_000)
SCALARS = (
    "1", "0", "-1", "1.5", "1e5", "1e-7", "1e+21", "-0", "-0.0", "1E+2", "12345678901234567890",
    "true", "false", "null", '"a"', '""', '"\\u0041\\u005cn"',
    '"é"', '"😀"', '"\\ud800"', '"a\\"b"', '"\\\\"', '"\\ud83d\\ude00"',
    "1e-400", "1e400",
)  # fmt: skip
NAMES = ('"__proto__"', '"a"', '"b"', '"toJSON"', '"10"', '"2"', '"é"', '""')


def value(pick: random.Random, depth: int) -> str:
    kind = pick.random()
    if depth == 0 or kind < 0.45:
        return pick.choice(SCALARS)
    items = [value(pick, depth - 1) for _ in range(pick.randint(0, 3))]
    if kind < 0.7:
        return f"[{','.join(items)}]"
    return "{" + ",".join(f"{pick.choice(NAMES)}{pick.choice([':', ': ', ' :'])}{item}" for item in items) + "}"


def text(pick: random.Random) -> bytes:
    if pick.random() < 0.3:
        return "".join(pick.choice(TOKENS) for _ in range(pick.randint(0, 12))).encode()
    found = value(pick, pick.randint(1, 5))
    for _ in range(pick.choice([0, 0, 1, 2, 3])):
        at = pick.randint(0, len(found))
        found = found[:at] + pick.choice([*TOKENS, ""]) + found[at + pick.choice([0, 1]) :]
    return found.encode("utf-8", "surrogatepass") + (b"\xff" if pick.random() < 0.02 else b"")


@pytest.mark.parametrize("seed", range(2))
def test_any_text_is_read_as_the_reference_reads_it(reference: ReferenceImplementation, seed: int) -> None:
    pick = random.Random(seed)
    texts = [text(pick) for _ in range(TEXTS)]
    differing, read = [], 0
    for data, theirs in zip(texts, reference.parse(texts), strict=True):
        try:
            ours = stringify(decode_json(data), canonical=False).decode()
        except ReferenceJsonError:
            ours = None
        read += ours is not None
        if ours != theirs:
            differing.append((data, ours, theirs))
    assert differing == []
    assert TEXTS / 10 < read < TEXTS, json.dumps(read)
