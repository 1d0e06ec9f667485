"""Independent evidence for an item that was read: listed checksums, the provider's checksum, and the type of its
content."""

from __future__ import annotations

import functools
import mimetypes
from collections.abc import Sequence

from millstream.mill.adoption.catalog import AdoptedItem, ChecksumEvidence
from millstream.mill.adoption.checksum_files import ChecksumList, ExpectedChecksum
from millstream.mill.adoption.due_items import ReadJob
from millstream.mill.adoption.sources import SourceItem
from millstream.stores.hashing import Digests
from millstream.stores.protocol import DEFAULT_MIMETYPE, EntryKind


def mismatch(
    expected: Sequence[ExpectedChecksum], item: SourceItem, digests: Digests, listed: ChecksumList | None
) -> str | None:
    """How what was read differs from what is said of it; None where it does not."""
    for one in expected:
        found = digests.sums.get(one.algorithm)
        if found != one.value:
            where = f"{list_origin(listed)}, line {one.line}, says"
            return f"its {one.algorithm} is {found}, and {where} {one.value}"
    for sums in item.checksums:
        found = digests.sums.get(sums.algorithm)
        if found is not None and found != sums.value:
            return f"its {sums.algorithm} is {found}, and its provider says {sums.value}"
    return None


def is_recorded(expected: Sequence[ExpectedChecksum], row: AdoptedItem) -> bool:
    """Whether *row* has all these checksums: then nothing has to be read to compare them."""
    known = {**row.sums, "sha256": row.sha256}
    return all(known.get(one.algorithm) == one.value for one in expected)


def list_origin(listed: ChecksumList | None) -> str:
    """The name of a list of checksums."""
    return "a list of checksums" if listed is None else listed.origin


def evidence_of(job: ReadJob, item: SourceItem, digests: Digests) -> str:
    """The origins of checksums that agree with the bytes that were read."""
    if job.expected:
        return ChecksumEvidence.LISTED.value
    if any(digests.sums.get(one.algorithm) == one.value for one in item.checksums):
        return ChecksumEvidence.PROVIDER.value
    return ChecksumEvidence.COMPUTED.value


def other_sums(digests: Digests) -> dict[str, str]:
    """The checksums by other algorithms than SHA-256."""
    return {name: value for name, value in digests.sums.items() if name != "sha256"}


def mimetype_of(job: ReadJob, item: SourceItem) -> str:
    """The type that the provider states, or that the name of a file tells."""
    if item.mimetype != DEFAULT_MIMETYPE or job.entry.kind != EntryKind.FILE:
        return item.mimetype
    return type_of_name(job.content_id)


def type_of_name(content_id: str) -> str:
    """The type that the name of a file tells."""
    return _guess_type(content_id.rpartition("/")[2].lstrip(".").partition(".")[2])


@functools.lru_cache(4096)
def _guess_type(endings: str) -> str:
    """The type of a file whose name has these *endings* after its first dot."""
    return mimetypes.guess_type(f"x.{endings}")[0] or DEFAULT_MIMETYPE
