"""The bit check: what a set of observed checksums means, as one pure total function.

Four sources speak of a content item (seed document duracloud-mill, "Bit Integrity Check Task Processor"): its bytes,
the storage provider, the manifest (the document's content index) and the audit log. Where no audit log is kept the
manifest speaks for both. The rows B1–B22 are those of the reference table; what differs from it on purpose:

- B3 with bytes that cannot be found is a row of its own, B3V "vanished during the check", and is retried first.
- B6, B8, B14 and B17 ask for a delay on the queue; no worker sleeps.
- B9, B10 and B16 never rewrite the manifest: what was recorded when the bytes arrived is not replaced by what stands
  beside a copy, since a forger of the copy forges that, too. Only the audit log corrects it (A5: it has the checksum
  as the last one that the item was written with, so the manifest missed an event).
- B26: an item of an adopted source that other programs have changed is explained: it is adopted next. B27: a damaged
  record beside an object is no provider that does not answer; a repair writes the object again. So is a checksum that
  we keep with the object where its server keeps none, if it is wrong alone: there is no provider to ask (B7).
- B30: an item that vanished from a source that other programs write is held as a deletion until an operator
  confirms it. There is no task: a repair could not write there. B31: an item that such a source excludes on purpose
  is explained.
- B25: an object without a row, of which other records of ours have other bytes, is never recorded by itself.
- B11 excuses only what the manifest cannot know yet: an item without a row, or one whose change waits in the audit
  outbox. A row that contradicts the object is judged at once, however recent the object's time is: a forger sets it.
- B12 and B13: an unknown age counts as old.
- B19: an object without a provider checksum is judged by its bytes against the manifest.
- B21: a tombstone without an object is as it should be; so is a deletion that waits in the audit outbox. B24: a
  tombstone with an object is a failure of its own.
- B4: bytes that still cannot be read at the last attempt are an outcome, not a dead letter.
- B32: bytes that a store does not give out by rule (archived, or no right to read them) are no damage: nothing is
  repaired. They are not intact either, as B2 says of a store that never reads; what the provider states is compared.
- A failure whose manifest sum is recorded for another copy asks for a repair instead of a bit error; so does B4, and
  a failure without a row whose sum in the audit log is recorded for another copy.

The result depends only on which sums are equal, so there are finitely many cases (:func:`canonical_observation`);
each is decided once.
"""

from __future__ import annotations

import enum
from functools import cache

import msgspec

from millstream.mill.integrity_outcomes import ROWS, CheckRow

LAST_ATTEMPT = 3
"""The attempt whose outcome is final (seed document, "Worker Manager": dead letter after the third failure)."""

RETRY_DELAY = 300.0
"""Seconds before the last attempt (seed document, rows 4 and 8–10: "wait 5 minutes")."""

FRESH_MICROSECONDS = 24 * 3600 * 1_000_000
"""A change younger than a day may still be on its way into the manifest (reference table, row B11)."""


class SourceAnswer(enum.StrEnum):
    """The answer of a source without a checksum."""

    MISSING = "missing"  # there is no such object (404)
    NO_CHECKSUM = "no-checksum"  # the provider has the object, and no checksum of it
    UNREACHABLE = "unreachable"  # the provider did not answer
    DAMAGED_RECORD = "damaged-record"  # what the provider keeps beside the object cannot be used
    LEFT_OUT = "left-out"  # the object is left out of what is protected, on purpose
    CHANGED = "changed"  # the object is not as it was adopted: other programs write it
    UNREADABLE = "unreadable"  # the object is there and its bytes cannot be read
    REFUSED = "refused"  # the store does not give the bytes out: archived, or no right to read them
    NOT_READ = "not-read"  # bytes are not read on this kind of store
    NOT_KEPT = "not-kept"  # there is no audit log


class CheckVerdict(enum.StrEnum):
    """The record of the check."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    ERROR = "ERROR"  # it could not be checked
    IGNORE = "IGNORE"  # nothing to check, for a known reason
    RETRY = "RETRY"  # not settled: check again


class ManifestAction(enum.StrEnum):
    """The action on the manifest row."""

    KEEP = "keep"
    SET_TO_STORE = "set-to-store"
    CREATE = "create"
    MARK_MISSING = "mark-missing"


class FollowUp(enum.StrEnum):
    """The task that a finding asks for."""

    NONE = "none"
    REPAIR = "repair"  # another copy is recorded with the manifest's sum
    BIT_ERROR = "bit-error"  # for people
    AUDIT = "audit"  # tell the audit log


class Observation(msgspec.Struct, frozen=True, gc=False):
    """The observed checksums of one content item. A sum is lower-case hex; anything else is an :class:`SourceAnswer`.

    ``manifest`` is None without a row; ``store`` may be MISSING, NO_CHECKSUM, DAMAGED_RECORD or UNREACHABLE;
    ``content`` MISSING, UNREADABLE, REFUSED, CHANGED or NOT_READ; ``audit`` None (no entry) or NOT_KEPT. ``attempt``
    counts from 1, :data:`LAST_ATTEMPT` is final and what a sweep uses. ``fresh``: the provider took the object less
    than a day ago (:func:`is_fresh`).
    ``pending``: an audited change of the item is not in the manifest yet.
    ``elsewhere``: another store's manifest row of this item is live and has the manifest's sum; where there is no row
    here, that of the audit log. ``contradicted``: there is no row, and a live row of another store has another sum than
    the provider states. ``read_only``: other programs write the store, and nothing is ever written there.
    ``own_record``: the sum of ``store`` is not the provider's own, but one that we keep with the object.
    """

    manifest: str | None
    store: str
    content: str
    deleted: bool = False
    audit: str | None = SourceAnswer.NOT_KEPT
    attempt: int = LAST_ATTEMPT
    fresh: bool = False
    elsewhere: bool = False
    pending: bool = False
    contradicted: bool = False
    read_only: bool = False
    own_record: bool = False

    @property
    def excused(self) -> bool:
        """Whether our records may not know the change yet (B11): what they have speaks for itself."""
        unknown = self.manifest is None and self.audit in (None, SourceAnswer.NOT_KEPT)
        return self.fresh and (unknown or self.pending)


class BitCheckOutcome(msgspec.Struct, frozen=True, gc=False):
    """The decision about an observation. ``document`` is the row in the seed document's table, ``delay`` is in
    seconds."""

    row: str
    verdict: CheckVerdict
    kind: str
    detail: str
    document: int | None = None
    manifest: ManifestAction = ManifestAction.KEEP
    task: FollowUp = FollowUp.NONE
    delay: float = 0.0

    @property
    def explained(self) -> bool:
        """Whether the item counts as explained in a report although its bytes were not compared."""
        return self.verdict == CheckVerdict.IGNORE


def shared_file_outcome(other: str) -> BitCheckOutcome:
    """The outcome of a correct copy that shares its file with the store *other*: it is written again."""
    text = ROWS[CheckRow.SHARED_FILE]
    detail = f"{text.detail} (store {other})"
    return BitCheckOutcome(CheckRow.SHARED_FILE, CheckVerdict.FAILURE, text.kind, detail, task=FollowUp.REPAIR)


def is_fresh(modified: int | None, now: int) -> bool:
    """Whether a change at *modified* is less than a day before *now* (microseconds).

    An unknown age is old, and so is a time that lies more than a day ahead: it says nothing about the age.
    """
    return modified is not None and abs(now - modified) < FRESH_MICROSECONDS


def decide_bit_check(seen: Observation) -> BitCheckOutcome:
    """The outcome of *seen*, for every possible observation."""
    return _decide_shape(canonical_observation(seen))


def canonical_observation(seen: Observation) -> Observation:
    """*seen* with its sums renamed to "a", "b", "c", "d" in order of appearance and its attempt brought to 1–3.

    Observations of one shape have one outcome; there are a few thousand shapes.
    """
    names: dict[str, str] = {}
    return Observation(
        manifest=_rename(seen.manifest, names),
        store=_rename(seen.store, names) or "",
        content=_rename(seen.content, names) or "",
        deleted=seen.deleted,
        audit=_rename(seen.audit, names),
        attempt=min(max(seen.attempt, 1), LAST_ATTEMPT),
        fresh=seen.fresh,
        elsewhere=seen.elsewhere and not seen.deleted and _has_record(seen),
        pending=seen.pending and seen.fresh and seen.manifest is not None,
        contradicted=seen.contradicted and seen.manifest is None,
        read_only=seen.read_only and seen.manifest is not None,
        own_record=seen.own_record and seen.manifest is not None and seen.content == seen.manifest,
    )


def _is_recorded_otherwise(seen: Observation) -> bool:
    """Whether the manifest has another sum than the provider states: that is known without the bytes."""
    return seen.manifest is not None and seen.store not in (seen.manifest, SourceAnswer.NO_CHECKSUM)


def _has_record(seen: Observation) -> bool:
    return seen.manifest is not None or seen.audit not in (None, SourceAnswer.NOT_KEPT)


_ANSWERS = {str(answer): answer for answer in SourceAnswer}


def _rename(value: str | None, names: dict[str, str]) -> str | None:
    if value is None:
        return None
    return _ANSWERS.get(value) or names.setdefault(value, "abcd"[len(names)])


@cache
def _decide_shape(seen: Observation) -> BitCheckOutcome:  # noqa: PLR0911  (one return a branch of the table)
    if seen.store == SourceAnswer.UNREACHABLE:
        return _settle(seen, CheckRow.UNREACHABLE, CheckVerdict.ERROR)
    if seen.store == SourceAnswer.MISSING:
        return _decide_missing(seen)
    if seen.store == SourceAnswer.LEFT_OUT:
        return _outcome(CheckRow.LEFT_OUT, CheckVerdict.IGNORE)
    if seen.store == SourceAnswer.DAMAGED_RECORD:
        return _fail(CheckRow.DAMAGED_RECORD, seen)
    if seen.content == SourceAnswer.CHANGED:
        return _outcome(CheckRow.CHANGED, CheckVerdict.IGNORE)
    if seen.content == SourceAnswer.UNREADABLE:
        return _settle(
            seen, CheckRow.UNREADABLE, CheckVerdict.ERROR, FollowUp.REPAIR if seen.elsewhere else FollowUp.BIT_ERROR
        )
    if seen.deleted:
        return _fail_old(seen, CheckRow.UNDELETED, CheckRow.UNDELETED)
    if seen.content == SourceAnswer.REFUSED and not _is_recorded_otherwise(seen):
        return _outcome(CheckRow.REFUSED, CheckVerdict.ERROR)
    if seen.store == SourceAnswer.NO_CHECKSUM:
        return _decide_without_checksum(seen)
    if seen.manifest is None:
        return _decide_unrecorded(seen)
    if seen.store == seen.manifest:
        return _decide_recorded(seen)
    return _decide_differing(seen)


def _decide_missing(seen: Observation) -> BitCheckOutcome:
    if seen.deleted:
        return _outcome(CheckRow.DELETED, CheckVerdict.IGNORE)
    if seen.manifest is None and seen.audit in (None, SourceAnswer.NOT_KEPT):
        return _outcome(CheckRow.GONE, CheckVerdict.IGNORE)
    if seen.attempt < LAST_ATTEMPT:
        return _retry(CheckRow.MISSING_AT_FIRST, seen)
    if seen.read_only:
        return _outcome(CheckRow.VANISHED, CheckVerdict.FAILURE, ManifestAction.MARK_MISSING)
    known = seen.manifest is not None
    return _fail(CheckRow.MISSING, seen, ManifestAction.MARK_MISSING if known else ManifestAction.KEEP)


def _decide_without_checksum(seen: Observation) -> BitCheckOutcome:
    """B19: the bytes against the manifest are all there is."""
    if seen.content == SourceAnswer.MISSING:
        return _vanished(seen)
    if seen.manifest is not None and seen.content == seen.manifest:
        return _audited(seen, CheckRow.NO_CHECKSUM)
    if seen.attempt < LAST_ATTEMPT:
        return _retry(CheckRow.NO_CHECKSUM, seen)
    if seen.excused:
        return _outcome(CheckRow.FRESH, CheckVerdict.IGNORE)
    return _fail(CheckRow.NO_CHECKSUM, seen)


def _decide_unrecorded(seen: Observation) -> BitCheckOutcome:
    """B14–B16, and rows 9 and 10 of the document."""
    if seen.content == SourceAnswer.MISSING:
        return _vanished(seen)
    if seen.content not in (seen.store, SourceAnswer.NOT_READ):
        return _fail_old(seen, CheckRow.UNRECORDED_AT_FIRST, CheckRow.UNRECORDED_DIFFERS)
    if seen.audit == seen.store:  # row 5: only the manifest does not know
        return _outcome(CheckRow.MANIFEST_OUTDATED, CheckVerdict.FAILURE, ManifestAction.CREATE)
    if seen.contradicted or seen.audit not in (None, SourceAnswer.NOT_KEPT):  # its row was lost
        return _fail_old(seen, CheckRow.UNRECORDED_AT_FIRST, CheckRow.CONTRADICTED)
    return _fail_old(seen, CheckRow.UNRECORDED_AT_FIRST, CheckRow.UNRECORDED, ManifestAction.CREATE, FollowUp.AUDIT)


def _decide_recorded(seen: Observation) -> BitCheckOutcome:
    """Provider and manifest agree: B1–B3, and rows 6 and 7 of the document."""
    if seen.content == SourceAnswer.MISSING:
        return _vanished(seen)
    if seen.content not in (seen.manifest, SourceAnswer.NOT_READ):
        return _fail(CheckRow.CONTENT_DIFFERS, seen)
    return _audited(seen, CheckRow.INTACT_UNREAD if seen.content == SourceAnswer.NOT_READ else CheckRow.INTACT)


def _decide_differing(seen: Observation) -> BitCheckOutcome:
    """Provider and manifest differ: B5–B11, B27, and rows 3–5 and 10 of the document."""
    if seen.content == seen.manifest:
        if seen.attempt < LAST_ATTEMPT:
            return _retry(
                CheckRow.STORE_DIFFERS_AT_FIRST if seen.attempt < LAST_ATTEMPT - 1 else CheckRow.STORE_DIFFERS_AGAIN,
                seen,
            )
        if seen.own_record and seen.audit in (seen.manifest, None, SourceAnswer.NOT_KEPT):
            return _fail(CheckRow.DAMAGED_RECORD, seen)
        return _outcome(CheckRow.STORE_DIFFERS, CheckVerdict.FAILURE, task=FollowUp.BIT_ERROR)
    if seen.content not in (seen.store, SourceAnswer.NOT_READ, SourceAnswer.REFUSED):
        return _fail_old(seen, CheckRow.MANIFEST_DIFFERS_AT_FIRST, CheckRow.ALL_DIFFER)
    if seen.audit == seen.store:  # row 5
        return _outcome(CheckRow.MANIFEST_OUTDATED, CheckVerdict.FAILURE, ManifestAction.SET_TO_STORE)
    return _fail_old(seen, CheckRow.MANIFEST_DIFFERS_AT_FIRST, CheckRow.MANIFEST_DIFFERS)


def _audited(seen: Observation, row: str) -> BitCheckOutcome:
    """All agree with the manifest: SUCCESS under *row*, unless the audit log does not."""
    if seen.audit is None:
        return _outcome(CheckRow.UNAUDITED, CheckVerdict.FAILURE, task=FollowUp.AUDIT)
    if seen.audit not in (seen.manifest, SourceAnswer.NOT_KEPT):
        return _outcome(CheckRow.AUDIT_DIFFERS, CheckVerdict.FAILURE, task=FollowUp.BIT_ERROR)
    return _outcome(row, CheckVerdict.SUCCESS)


def _vanished(seen: Observation) -> BitCheckOutcome:
    if seen.attempt < LAST_ATTEMPT:
        return _retry(CheckRow.VANISHED_MEANWHILE, seen)
    if seen.manifest is None:
        return _outcome(CheckRow.VANISHED_MEANWHILE, CheckVerdict.IGNORE)
    if seen.read_only:
        return _outcome(CheckRow.VANISHED, CheckVerdict.FAILURE, ManifestAction.MARK_MISSING)
    return _fail(CheckRow.VANISHED_MEANWHILE, seen, ManifestAction.MARK_MISSING)


def _fail_old(
    seen: Observation,
    early: str,
    late: str,
    action: ManifestAction = ManifestAction.KEEP,
    task: FollowUp = FollowUp.NONE,
) -> BitCheckOutcome:
    """RETRY under row *early* until the last attempt, then FAILURE under row *late* unless the change is excused."""
    if seen.attempt < LAST_ATTEMPT:
        return _retry(early, seen)
    if seen.excused:
        return _outcome(CheckRow.FRESH, CheckVerdict.IGNORE)
    return _fail(late, seen, action, task)


def _fail(
    row: str, seen: Observation, action: ManifestAction = ManifestAction.KEEP, task: FollowUp = FollowUp.NONE
) -> BitCheckOutcome:
    default = FollowUp.REPAIR if seen.elsewhere else FollowUp.BIT_ERROR
    return _outcome(row, CheckVerdict.FAILURE, action, default if task == FollowUp.NONE else task)


def _settle(seen: Observation, row: str, verdict: CheckVerdict, task: FollowUp = FollowUp.BIT_ERROR) -> BitCheckOutcome:
    if seen.attempt < LAST_ATTEMPT:
        return _retry(row, seen)
    return _outcome(row, verdict, task=task)


def _retry(row: str, seen: Observation) -> BitCheckOutcome:
    delay = RETRY_DELAY if seen.attempt == LAST_ATTEMPT - 1 else 0.0
    return _outcome(row, CheckVerdict.RETRY, delay=delay)


def _outcome(
    row: str,
    verdict: CheckVerdict,
    manifest: ManifestAction = ManifestAction.KEEP,
    task: FollowUp = FollowUp.NONE,
    delay: float = 0.0,
) -> BitCheckOutcome:
    text = ROWS[row]
    return BitCheckOutcome(
        row=row,
        verdict=verdict,
        kind=text.kind,
        detail=text.detail,
        document=text.document,
        manifest=manifest,
        task=task,
        delay=delay,
    )
