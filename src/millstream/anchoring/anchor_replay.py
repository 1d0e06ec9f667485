"""Replaying the anchors: everything is checked again from the ledger and the files alone, and the index against it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import sqlalchemy as sa

from millstream.anchoring.cas import Cas
from millstream.anchoring.content import read_manifest
from millstream.anchoring.cut_manifest import MAX_FILE_BYTES, MAX_MANIFEST_BYTES, parse_anchor_string
from millstream.anchoring.errors import BatchFormatError, CasError, CasTooLargeError, LedgerError
from millstream.anchoring.index import AnchorIndex
from millstream.anchoring.ledger import Ledger, LedgerEntry, checked_chain
from millstream.anchoring.observer import observe_entry


class ReplayFinding(msgspec.Struct, frozen=True):
    """Something that is not as it was anchored: ``what`` is ``ledger``, ``file`` or ``index``.

    ``number`` is the anchor concerned and ``cid`` the file, None where there is no such thing.
    """

    what: str
    reason: str
    number: int | None = None
    cid: str | None = None


class ReplayReport(msgspec.Struct, frozen=True):
    """The result of a replay; ``findings`` is empty if everything is as it was anchored."""

    anchors: int
    files: int
    findings: tuple[ReplayFinding, ...]


def replay(cas: Cas, ledger: Ledger, index: AnchorIndex | None = None) -> ReplayReport:
    """Check the chain of *ledger*, every file it names, and every other file in *cas*; compare *index* with them.

    The rules are applied by the observer's own code to an empty index in memory; a finding stops nothing but what
    depends on it.
    """
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    try:
        return _AnchorReplay(cas, ledger, AnchorIndex(engine)).run(index)
    finally:
        engine.dispose()


class _AnchorReplay:
    def __init__(self, cas: Cas, ledger: Ledger, fresh: AnchorIndex) -> None:
        self._cas = cas
        self._ledger = ledger
        self._fresh = fresh
        self._named: set[str] = set()
        self._unreadable: set[int] = set()
        self._anchors = 0
        self._broken_at: int | None = None

    def run(self, index: AnchorIndex | None) -> ReplayReport:
        findings = list(itertools.chain(self._read_ledger(), self._read_others()))
        if index is not None:
            findings += self._compare(index)
        return ReplayReport(self._anchors, len(self._named), tuple(findings))

    def _read_ledger(self) -> Iterator[ReplayFinding]:
        try:
            for entry in checked_chain(self._ledger.entries()):
                self._anchors += 1
                findings = list(self._damaged_files(entry))
                if findings:
                    self._unreadable.add(entry.number)
                    yield from findings
                else:
                    observe_entry(self._fresh, self._cas, entry)
        except LedgerError as error:
            self._broken_at = self._anchors + 1
            yield ReplayFinding("ledger", str(error), self._broken_at)

    def _damaged_files(self, entry: LedgerEntry) -> Iterator[ReplayFinding]:
        try:
            self._named.add(parse_anchor_string(entry.anchor_string)[1])
            _, manifest = read_manifest(self._cas, entry.anchor_string)
        except BatchFormatError:
            return  # invalid for good, which is what the observer must have found as well
        except CasError as error:
            yield ReplayFinding("file", str(error), entry.number, parse_anchor_string(entry.anchor_string)[1])
            return
        for cid in manifest.uris:
            self._named.add(cid)
            yield from self._damage(cid, MAX_FILE_BYTES, entry.number)

    def _read_others(self) -> Iterator[ReplayFinding]:
        """Files that no anchor names (of a cut in progress, or left over) must at least have the content that their
        names state."""
        for cid in self._cas.cids():
            if cid not in self._named:
                yield from self._damage(cid, max(MAX_FILE_BYTES, MAX_MANIFEST_BYTES), None)

    def _damage(self, cid: str, limit: int, number: int | None) -> Iterator[ReplayFinding]:
        try:
            self._cas.get(cid, limit)
        except CasTooLargeError:
            return  # whole: the fault is the anchor's, and the observer must have found it as well
        except CasError as error:
            yield ReplayFinding("file", str(error), number, cid)

    def _compare(self, index: AnchorIndex) -> Iterator[ReplayFinding]:
        known, found = set(index.numbers()), set(self._fresh.numbers())
        for number in sorted((known | found) - self._unreadable):
            if self._broken_at is not None and number >= self._broken_at:
                return  # nothing can be said of what comes after a break in the chain
            if number not in known:
                yield ReplayFinding("index", f"anchor {number} is missing from the index", number)
            elif number not in found:
                yield ReplayFinding("index", f"anchor {number} of the index is not in the ledger", number)
            elif index.rows(number) != self._fresh.rows(number):
                yield ReplayFinding("index", f"the index disagrees with the content of anchor {number}", number)
