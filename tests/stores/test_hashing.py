"""Hashes taken while bytes pass by."""

from __future__ import annotations

import hashlib
import io

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.stores import copy_stream, hash_stream


@settings(max_examples=15)
@given(st.binary(max_size=100), st.integers(0, 3))
def test_the_copy_is_the_source_and_the_hashes_are_its_hashes(tail: bytes, mebibytes: int) -> None:
    data = b"m" * (mebibytes << 20) + tail
    sink = io.BytesIO()
    digests = copy_stream(io.BytesIO(data), sink, ("sha256", "md5"))
    assert sink.getvalue() == data
    assert digests.size == len(data)
    assert digests.sha256 == hashlib.sha256(data).hexdigest()
    assert digests.sums["md5"] == hashlib.md5(data).hexdigest()
    assert hash_stream(io.BytesIO(data)).sha256 == digests.sha256
