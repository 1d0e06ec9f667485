"""SipHash-2-4 with the key that RocketMQ clients use, and the queue of a message group that follows from it.

Java's and Go's clients place a group in the queue ``siphash(group) mod queues``; those of other languages do not, which
is why the broker does it for all of them.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
_K0, _K1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908


@lru_cache(maxsize=65_536)
def group_hash(group: str) -> int:
    """The 64-bit SipHash-2-4 of *group* in UTF-8, under the key 00 01 … 0f, as an unsigned number."""
    data = group.encode("utf-8")
    v0, v1 = _K0 ^ 0x736F6D6570736575, _K1 ^ 0x646F72616E646F6D
    v2, v3 = _K0 ^ 0x6C7967656E657261, _K1 ^ 0x7465646279746573
    whole = len(data) & ~7
    words = [int.from_bytes(data[start : start + 8], "little") for start in range(0, whole, 8)]
    words.append((len(data) & 0xFF) << 56 | int.from_bytes(data[whole:], "little"))
    for word in words:
        v3 ^= word
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3))
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def group_queue(group: str, queues: int) -> int:
    """Which of *queues* queues (numbered from 0) the messages of *group* go to: the signed hash, floor-modulo."""
    number = group_hash(group)
    return (number - (1 << 64) if number >> 63 else number) % queues


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotate(v1, 17) ^ v2
    return v0, v1, _rotate(v2, 32), v3


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
