"""The time stamps that a proof of a ledger entry gets, from those that the ledger has."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence

from millstream.anchoring.cas import CasReader
from millstream.anchoring.errors import AnchoringError
from millstream.anchoring.timestamps.entry_timestamp import EntryTimestamp, TimestampRenewal
from millstream.anchoring.timestamps.renewal import TimestampTree, parse_renewal
from millstream.anchoring.timestamps.timestamp_tables import TimestampRecord
from millstream.anchoring.timestamps.token import MAX_TOKEN_BYTES
from millstream.anchoring.transparency.signed_note import MAX_NOTE_BYTES

MOST_TIMESTAMPS = 8
"""The most time stamps of a proof, each of another authority."""

InclusionPath = Callable[[int, int], Sequence[bytes]]
"""The path from the leaf at an index (from 0) to the root of a number of first entries."""

_log = logging.getLogger(__name__)


def renewal_chain(record: TimestampRecord, renewals: Sequence[TimestampRecord]) -> Sequence[TimestampRecord]:
    """*record* and those of the *renewals* that make it hold for longer, one after the other.

    Each was made while the one before it was valid, and as few are taken as possible.
    """
    chain = [record]
    while True:
        last = chain[-1]
        later = [each for each in renewals if (each.renews or 0) >= last.number and each.time <= last.ends_at]
        best = max(later, key=lambda each: each.ends_at, default=last)
        if best.ends_at <= last.ends_at and best.digest == last.digest:
            return chain
        chain.append(best)


def timestamps_of(
    number: int, records: Sequence[TimestampRecord], *, cas: CasReader, path: InclusionPath, now: int
) -> tuple[EntryTimestamp, ...]:
    """The time stamps among *records* of entry *number* (from 1): of each authority the earliest that holds at *now*.

    Tokens whose files cannot be read from *cas* are left out, with a warning.
    """
    found: dict[str, EntryTimestamp] = {}
    renewals = [record for record in records if record.renews is not None]
    for record in records:
        if record.size is None or record.size < number or record.authority in found or len(found) == MOST_TIMESTAMPS:
            continue
        chain = renewal_chain(record, renewals)
        if chain[-1].ends_at < now:
            continue
        try:
            found[record.authority] = _stamp(number, chain, records, cas, path)
        except AnchoringError as error:
            _log.warning("the time stamp %d of the ledger is not in the proof: %s", record.number, error)
    return tuple(found.values())


def _stamp(
    number: int,
    chain: Sequence[TimestampRecord],
    records: Sequence[TimestampRecord],
    cas: CasReader,
    path: InclusionPath,
) -> EntryTimestamp:
    first = chain[0]
    before, renewals = first, list[TimestampRenewal]()
    for record in chain[1:]:
        document = cas.get(record.document, MAX_NOTE_BYTES)
        tree = TimestampTree(parse_renewal(document).digest, records[: record.renews], cas)
        index, path_to_root = tree.path(before.number)
        steps = tuple(step.hex() for step in path_to_root)
        renewals.append(TimestampRenewal(document.decode(), index, steps, _token(record, cas)))
        before = record
    return EntryTimestamp(
        checkpoint=cas.get(first.document, MAX_NOTE_BYTES).decode(),
        entry_path=tuple(step.hex() for step in path(number - 1, first.size or 0)),
        renewals=tuple(renewals),
        token=_token(first, cas),
    )


def _token(record: TimestampRecord, cas: CasReader) -> str:
    return base64.b64encode(cas.get(record.token, MAX_TOKEN_BYTES)).decode()
