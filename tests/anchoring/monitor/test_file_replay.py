"""A monitor that may read the files of anchors judges them as the node's own observer does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import AnchorIndex, LocalCas
from millstream.anchoring.cut_manifest import anchor_string, parse_anchor_string
from millstream.anchoring.errors import MonitorStateError
from millstream.anchoring.monitor import (
    FileReplay,
    LedgerMonitor,
    MonitorReport,
    MonitorRules,
    MonitorStateFile,
    open_published,
)
from millstream.anchoring.transparency import FolderFiles
from millstream.anchoring.transparency.policy import trusting
from millstream.core.sqlite_file import open_database
from millstream.testing.batches import CONFIG, make_batch
from suite.sizes import sized
from support.published_ledger import PublishedLedger


class ReplayWatch:
    """A published ledger whose anchors have files, and a monitor that reads them."""

    def __init__(self, folder: Path, parts: Any) -> None:
        self.parts, self.folder = parts, folder
        self.ledger = PublishedLedger(folder / "anchors")
        self.cas = parts.cas
        self.index = folder / "anchors.index"
        self._next = 1

    def anchor(self, count: int = 1) -> list[str]:
        """Anchor so many batches, one each; the anchor strings."""
        strings = []
        for _ in range(count):
            self.parts.writer.add("weather", [make_batch([self._next, self._next + 1])], config=CONFIG)
            self._next += 2
            strings += [entry.anchor_string for entry in self.parts.writer.cut(force=True)]
        return strings

    def publish(self, *anchors: str) -> None:
        self.ledger.append(*anchors)
        self.ledger.publish()

    def look(self) -> MonitorReport:
        engine = open_database(self.index, ["anchor_index_"])
        replay = FileReplay(AnchorIndex(engine), self.cas, self.ledger.clock)
        rules = MonitorRules(policy=trusting([self.ledger.key.verifier_key]))
        files, state = open_published(str(self.ledger.folder)), MonitorStateFile(self.folder / "state")
        try:
            return LedgerMonitor(files, state, rules, self.ledger.clock, replay).look()
        finally:
            engine.dispose()

    def found(self) -> list[tuple[str, int | None]]:
        return [(finding.kind, finding.number) for finding in self.look().findings]


@pytest.fixture
def watch(tmp_path: Path, make_parts: Any) -> Iterator[ReplayWatch]:
    yield ReplayWatch(tmp_path, make_parts())


def test_the_files_of_each_anchor_are_read_once(watch: ReplayWatch) -> None:
    watch.publish(*watch.anchor(3))
    report = watch.look()
    assert (report.findings, report.audited, report.replayed) == ((), 3, 3)
    watch.publish(*watch.anchor(2))
    cas, asked = watch.cas, list[str]()

    class Counting:
        def get(self, cid: str, limit: int) -> bytes:
            asked.append(cid)
            return cas.get(cid, limit)  # type: ignore[no-any-return]

    watch.cas = Counting()
    assert (watch.look().replayed, len(asked)) == (5, 4), "a manifest and a batch file of each new anchor"


def test_a_missing_file_is_named_and_the_replay_continues_when_it_is_back(watch: ReplayWatch) -> None:
    anchors = watch.anchor(3)
    watch.publish(*anchors)
    manifest = watch.parts.folder / "cas" / parse_anchor_string(anchors[1])[1]
    data = manifest.read_bytes()
    manifest.unlink()
    report = watch.look()
    (finding,) = report.findings
    assert (finding.kind, finding.number, manifest.name in finding.message) == ("file", 2, True)
    assert (report.audited, report.replayed) == (3, 0), "the entries are checked whether files are there or not"
    manifest.write_bytes(data[:-1] + b"x")
    assert watch.found() == [("file", 2)]
    manifest.write_bytes(data)
    assert (watch.found(), watch.look().replayed) == ([], 3)


def test_an_anchor_that_claims_other_batches_than_its_files_have_stays_reported(watch: ReplayWatch) -> None:
    first, second = watch.anchor(2)
    count, cid = parse_anchor_string(second)
    watch.publish(first, anchor_string(count + 1, cid), first)
    for _ in range(2):
        report = watch.look()
        assert [(finding.kind, finding.number) for finding in report.findings] == [("anchor", 2), ("anchor", 3)]
        assert "states 2 batches, but its manifest states 1" in report.findings[0].message
        assert "is already anchored" in report.findings[1].message or "anchor 1" in report.findings[1].message
        assert report.replayed == 3


def test_an_index_that_was_lost_is_made_again_and_one_of_another_ledger_is_refused(watch: ReplayWatch) -> None:
    anchors = watch.anchor(3)
    watch.publish(*anchors)
    watch.look()
    for file in watch.folder.glob("anchors.index*"):
        file.unlink()
    assert (watch.found(), watch.look().replayed) == ([], 3)
    other = PublishedLedger(watch.folder / "anchors", "example.org/other")
    other.append(anchors[1])
    (watch.folder / "state").unlink()
    watch.ledger = other
    other.publish()
    with pytest.raises(MonitorStateError, match="the index belongs to another ledger"):
        watch.look()


def test_entries_out_of_order_are_found_and_hold_nothing_up(watch: ReplayWatch) -> None:
    watch.publish(*watch.anchor(3))
    watch.ledger.lines[1:1] = [b"not an entry"]
    watch.ledger.publish()
    report = watch.look()
    assert {finding.kind for finding in report.findings} == {"entry"}
    assert report.replayed == 4


def test_a_file_store_that_is_away_holds_up_only_the_files(watch: ReplayWatch) -> None:
    from millstream.anchoring.remote_cas import FallbackCas, open_cas_source

    watch.publish(*watch.anchor(2))
    good, watch.cas = watch.cas, FallbackCas([open_cas_source("http://127.0.0.1:9/files")])
    report = watch.look()
    assert [finding.kind for finding in report.findings] == ["unavailable"]
    assert (report.audited, report.replayed) == (2, 0)
    watch.cas = good
    assert watch.look().replayed == 2


class Killed(BaseException):
    """What ends a monitor in the middle, as SIGKILL does: nothing of ours catches it."""


class Countdown:
    """Ends the monitor at step number *fatal* of reading a file of the ledger or of an anchor, or writing the state."""

    def __init__(self, fatal: int | None) -> None:
        self.taken, self._fatal = 0, fatal

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self.taken += 1
            if self.taken == self._fatal:
                raise Killed
            return function(*arguments, **named)

        return step


def test_a_monitor_that_ends_at_any_step_neither_loses_nor_invents_a_finding(
    watch: ReplayWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = watch.anchor(2)
    watch.publish(first, second)
    assert watch.look().findings == ()
    start = {path: path.read_bytes() for path in watch.folder.iterdir() if path.is_file()}
    wrong_count = anchor_string(7, parse_anchor_string(second)[1])
    watch.ledger.append(*watch.anchor(2), wrong_count, *[first] * 2)
    watch.ledger.lines[3] = b"not an entry"
    watch.ledger.publish()

    def looks(fatal: int | None) -> tuple[int, MonitorReport]:
        for path in watch.folder.iterdir():
            if path.is_file():
                path.unlink()
        for path, data in start.items():
            path.write_bytes(data)
        steps, report = Countdown(fatal), None
        with monkeypatch.context() as patched:
            patched.setattr(FolderFiles, "read", steps.wrap(FolderFiles.read))
            patched.setattr(MonitorStateFile, "write", steps.wrap(MonitorStateFile.write))
            patched.setattr(LocalCas, "get", steps.wrap(LocalCas.get))
            while report is None:
                with contextlib.suppress(Killed):
                    report = watch.look()
        return steps.taken, report

    taken, undisturbed = looks(None)
    found = sorted((finding.kind, finding.number or 0) for finding in undisturbed.findings)
    assert found[:2] == [("anchor", 5), ("anchor", 6)]
    assert ("entry", 4) in found
    assert undisturbed.replayed == undisturbed.audited == 7
    for fatal in random.Random(3).sample(range(1, taken + 1), sized(quick=6, ci=60, long=taken)):
        again = looks(fatal)[1]
        assert sorted((finding.kind, finding.number or 0) for finding in again.findings) == found, fatal
        assert (again.audited, again.replayed) == (7, 7)
