"""What batches of others can make a reader hold: measured for every file and trick, against what it may unpack."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.errors import CasNotFoundError
from millstream.anchoring.sidetree import (
    SIDETREE,
    BatchFileError,
    Operation,
    RequestError,
    parse_request,
    read_batch,
    write_batch,
)
from millstream.testing.dids import DidOwner

LIMIT = 20_000
SMALL = msgspec.structs.replace(
    SIDETREE,
    max_operations=100,
    max_core_index_bytes=LIMIT,
    max_provisional_index_bytes=LIMIT,
    max_proof_bytes=LIMIT,
    max_chunk_bytes=LIMIT,
)
TIMES = 64
"""The bytes that Python takes for a byte of the densest JSON that there is, and the text itself.

That is 24 for ``{},{},…``, and 56 for ``[[[…``: Python 3.13 decodes 10,000 levels, earlier ones at most 1,500.
"""


def batch() -> list[Operation]:
    people = [DidOwner(f"memory{n}") for n in range(4)]
    return [people[0].create, people[1].recover(), people[2].deactivate(), people[3].update()]


WRITTEN = write_batch(batch(), SMALL)
KINDS = {file.kind: file for file in WRITTEN.files}


def dense(part: bytes) -> bytes:
    """An object with as many *part* in a list as a reader will unpack."""
    whole = b'{"operations":[' + part * ((3 * LIMIT - 30) // len(part))
    return whole + part.rstrip(b",") + b"]}"


TRICKS: dict[str, Callable[[], bytes]] = {
    "bomb": lambda: gzip.compress(bytes(50_000_000)),
    "bomb of bombs": lambda: gzip.compress(gzip.compress(bytes(50_000_000))) + gzip.compress(bytes(50_000_000)),
    "objects": lambda: gzip.compress(dense(b"{},")),
    "lists": lambda: gzip.compress(dense(b"[],")),
    "nested": lambda: gzip.compress(b"[" * 3 * LIMIT),
    "numbers": lambda: gzip.compress(dense(b"0.1,")),
    "texts": lambda: gzip.compress(dense(b'"ab",')),
    "members": lambda: gzip.compress(b"{" + b",".join(b'"%d":0' % n for n in range(7_000)) + b"}"),
    "one number": lambda: gzip.compress(b'{"a":' + b"9" * (3 * LIMIT - 10) + b"}"),
    "many members": lambda: gzip.compress(b"{", mtime=0) + gzip.compress(b"", mtime=0) * 990,
    "not gzip": lambda: bytes(1_000_000),
}


def read(kind: str, data: bytes, anchor: str = WRITTEN.anchor) -> str:
    """What a reader says of the batch whose file *kind* is *data*: its fault, or an empty text."""
    files = {file.uri: data if file.kind == kind else file.data for file in WRITTEN.files}

    def fetch(uri: str, _limit: int) -> bytes:
        if uri not in files:
            raise CasNotFoundError(uri)
        return files[uri]

    try:
        return read_batch(anchor, fetch, SMALL).fault or ""
    except (BatchFileError, CasNotFoundError) as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trick", TRICKS)
def test_no_file_makes_a_reader_hold_more_than_what_it_may_unpack(kind: str, trick: str) -> None:
    data = TRICKS[trick]()
    assert read(kind, KINDS[kind].data) == "", "the batch itself is good"
    tracemalloc.start()
    try:
        fault = read(kind, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fault, "it is refused with a reason"
    assert peak < TIMES * 3 * LIMIT, f"{peak:,} bytes for at most {3 * LIMIT:,}"


@pytest.mark.parametrize(
    "trick", [b"[" * 10_000, b"{}" * 5_000, b'{"type":"create",' + b'"a":[],' * 1_000, b"9" * 9_999]
)
def test_no_request_makes_the_door_hold_more_than_its_size_allows(trick: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            parse_request(trick, SIDETREE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < TIMES * SIDETREE.max_operation_bytes


def mutated(data: st.DataObject, value: object) -> object:
    """*value* with one place anywhere in it removed, doubled or replaced."""
    if data.draw(st.integers(0, 3)) and isinstance(value, dict) and value:
        name = data.draw(st.sampled_from(sorted(value)))
        if data.draw(st.booleans()):
            return {**value, name: mutated(data, value[name])}
        return {key: item for key, item in value.items() if key != name}
    if data.draw(st.integers(0, 3)) and isinstance(value, list) and value:
        place = data.draw(st.integers(0, len(value) - 1))
        changed = [mutated(data, item) if n == place else item for n, item in enumerate(value)]
        return changed + data.draw(st.sampled_from([[], value, value[:1]]))
    return data.draw(st.sampled_from([None, True, -1, 2**60, 0.5, "", "bafy", "é", [], {}, [[]], {"a": {}}, [value]]))


def changed_to_nothing(data: bytes) -> bool:
    """Whether the core index is one of no operation, as an empty object and an empty list are for the reference."""
    return not msgspec.json.decode(gzip.decompress(data))


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 200), st.data())
def test_no_changed_value_or_count_or_doubled_suffix_does_more_than_refuse(
    kind: str, count: int, data: st.DataObject
) -> None:
    value = msgspec.json.decode(gzip.decompress(KINDS[kind].data))
    changed = gzip.compress(msgspec.json.encode(mutated(data, value)))
    _, _, uri = WRITTEN.anchor.partition(".")
    fault = read(kind, changed, f"{count}.{uri}")
    assert count >= 4 or fault or changed_to_nothing(changed), "fewer than there are is never right"
