"""Valid content with small changes, for parsers: most random content is refused at its first byte."""

from __future__ import annotations

from hypothesis import strategies as st

_ANY = st.binary(max_size=8)


@st.composite
def altered(draw: st.DrawFn, valid: st.SearchStrategy[bytes], pieces: st.SearchStrategy[bytes] = _ANY) -> bytes:
    """What *valid* gives, with up to four changes: bytes are left out, doubled, or replaced by one of *pieces*."""
    content = draw(valid)
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(content)))
        end = begin + draw(st.integers(0, 3) | st.integers(0, 40))
        content = content[:begin] + draw(pieces | st.just(content[begin:end] * 2)) + content[end:]
    return content
