"""Where message groups go: the published vectors of SipHash-2-4, and those of the RocketMQ clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.messaging.protocol.siphash import group_hash, group_queue


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (bytes(range(15)).decode(), 0xA129CA6149BE45E5),  # the vector of the SipHash paper, appendix A
        ("", 0x726FDB47DD0E0E31),
        ("order-0", 0x620B330B6C0D761E),
        ("order-1", 0xC37E18DB31B97687),
    ],
)
def test_hashes_equal_the_published_vectors(group: str, expected: int) -> None:
    assert group_hash(group) == expected


@pytest.mark.parametrize(("group", "queue"), [("order-0", 6), ("order-1", 7), ("", 1)])
def test_queues_follow_from_the_signed_hash(group: str, queue: int) -> None:
    assert group_queue(group, 8) == queue


@given(group=st.text(max_size=60), queues=st.integers(1, 64))
def test_every_group_has_one_queue(group: str, queues: int) -> None:
    signed = int.from_bytes(group_hash(group).to_bytes(8, "big"), "big", signed=True)
    assert group_queue(group, queues) == signed % queues


def test_the_published_vectors_hold() -> None:
    path = Path(__file__).parents[2] / "docs" / "formats" / "fifo-vectors.json"
    vectors = json.loads(path.read_text("utf-8"))
    assert len(vectors) > 20
    for vector in vectors:
        assert f"{group_hash(vector['group']):016x}" == vector["hash"]
        for queues, queue in vector["queues"].items():
            assert group_queue(vector["group"], int(queues)) == queue
