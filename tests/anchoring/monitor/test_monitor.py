"""A monitor follows a published ledger, keeps what it has seen, and says what is wrong with the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millstream.anchoring.errors import MonitorBusyError, MonitorStateError
from millstream.anchoring.ledger import decode_entry
from millstream.anchoring.monitor import LedgerMonitor, MonitorReport, MonitorRules, MonitorStateFile, open_published
from millstream.anchoring.monitor import entry_audit as module
from millstream.anchoring.monitor.findings import finding
from millstream.anchoring.monitor.state import MonitorState
from millstream.anchoring.transparency.policy import TrustPolicy, trusting
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, parse_note
from millstream.core.clock import MICROSECONDS
from millstream.testing.ledgers import some_anchor
from suite.sizes import sized
from support.published_ledger import PublishedLedger, sealed, served
from support.witnesses import TestWitness

HOUR = 3600 * MICROSECONDS


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # these tests end no machines


class Watch:
    """A ledger of somebody, served over HTTP, and a monitor of it; each look is made by a monitor that begins anew."""

    def __init__(self, folder: Path, url: str) -> None:
        self.ledger = PublishedLedger(folder / "web" / "anchors")
        self.clock = self.ledger.clock
        self.url, self.state = f"{url}/anchors", MonitorStateFile(folder / "anchors.state")
        self.rules = MonitorRules(policy=trusting([self.ledger.key.verifier_key]))

    def monitor(self, **changed: object) -> LedgerMonitor:
        rules = msgspec.structs.replace(self.rules, **changed)
        return LedgerMonitor(open_published(self.url), self.state, rules, self.clock)

    def look(self, **changed: object) -> MonitorReport:
        return self.monitor(**changed).look()

    def kinds(self, **changed: object) -> list[str]:
        return [finding.kind for finding in self.look(**changed).findings]

    def file(self, path: str) -> Path:
        return self.ledger.folder / path


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as url:
        yield Watch(tmp_path, url)


def test_a_growing_ledger_is_well_at_every_size(watch: Watch) -> None:
    sizes = [0, 1, 5, 255, 256, 257, 511, 512, sized(quick=4_100, ci=5_000, long=70_000)]
    for old, new in itertools.pairwise([0, *sizes]):
        watch.ledger.grow(new - old)
        watch.ledger.publish()
        report = watch.look()
        assert report.findings == (), report
        assert (report.size, report.new, report.audited) == (new, new - old, new)
    assert report.signed_by == (str(watch.ledger.key.verifier_key),)
    assert watch.look().new == 0


def test_a_ledger_in_a_folder_is_followed_too(watch: Watch) -> None:
    watch.ledger.grow(300)
    watch.ledger.publish()
    watch.url = str(watch.ledger.folder)
    assert (watch.look().findings, watch.look().audited) == ((), 300)


def test_a_published_entry_that_was_not_signed_is_named(watch: Watch) -> None:
    watch.ledger.grow(300)
    watch.ledger.publish()
    bundle = watch.file("tile/entries/000")
    good = bundle.read_bytes()
    bundle.write_bytes(good.replace(some_anchor(17).encode(), some_anchor(18).encode()))
    (finding,) = watch.look().findings
    assert finding.kind == "entries"
    assert "entry 18 in tile/entries/000 is not the entry that was signed" in finding.message
    bundle.write_bytes(good)
    assert (watch.look().findings, watch.look().audited) == ((), 300)


@pytest.mark.parametrize("path", ["checkpoint", "tile/0/000", "tile/entries/000", "tile/entries/001.p/44"])
def test_a_file_that_is_missing_or_cut_off_is_named(watch: Watch, path: str) -> None:
    watch.ledger.grow(10)
    watch.ledger.publish()
    watch.look()
    watch.ledger.grow(290)
    watch.ledger.publish()
    file = watch.file(path)
    data = file.read_bytes()
    file.unlink()
    (missing,) = watch.look().findings
    assert (missing.kind, path in missing.message) == ("tiles", True), missing
    file.write_bytes(data[: len(data) // 2])
    (short,) = watch.look().findings
    assert short.kind in ("tiles", "signature")
    file.write_bytes(data)
    assert (watch.look().findings, watch.look().size) == ((), 300)


def test_tiles_that_do_not_lead_to_the_signed_root_are_no_proof_of_a_fork(watch: Watch) -> None:
    """The operator of a mirror can damage tiles; only signatures prove a fork."""
    watch.ledger.grow(300)
    watch.ledger.publish()
    watch.look()
    watch.ledger.grow(300)
    watch.ledger.publish()
    tile = watch.file("tile/0/001")
    good = tile.read_bytes()
    tile.write_bytes(good[:1600] + bytes([good[1600] ^ 1]) + good[1601:])
    (finding,) = watch.look().findings
    assert (finding.kind, "do not hash to the root of the checkpoint of 600 entries" in finding.message) == (
        "tiles",
        True,
    )
    tile.write_bytes(good)
    assert watch.kinds() == []


def test_a_partial_tile_that_was_replaced_by_the_full_one_is_read_there(watch: Watch) -> None:
    watch.ledger.grow(100)
    old = watch.ledger.publish()
    watch.ledger.grow(200)
    watch.ledger.publish()
    watch.file("checkpoint").write_bytes(old.data)
    assert not watch.file("tile/0/000.p/100").exists()
    assert (watch.look().findings, watch.look().audited) == ((), 100)


def test_a_server_that_is_away_is_unavailable_and_nothing_is_lost(watch: Watch) -> None:
    watch.ledger.grow(5)
    watch.ledger.publish()
    watch.look()
    url, watch.url = watch.url, "http://127.0.0.1:9/anchors"
    report = watch.look()
    assert [finding.kind for finding in report.findings] == ["unavailable"]
    assert (report.origin, report.size, report.audited) == ("example.org/anchors", 5, 5)
    watch.url = url
    assert watch.kinds() == []


def test_a_fork_is_proven_by_both_signed_checkpoints_and_stays_reported(watch: Watch) -> None:
    watch.ledger.grow(300)
    first = watch.ledger.publish()
    watch.look()
    lines = list(map(decode_entry, watch.ledger.lines))
    watch.ledger.rewrite(lines[:200])
    watch.ledger.grow(150, salt=1)
    second = watch.ledger.publish()
    for _ in range(2):
        (fork,) = watch.look().findings
        assert (fork.kind, fork.checkpoints) == ("fork", (first.data.decode(), second.data.decode()))
        assert (
            "signed trees of 300 and 350 entries, of which the larger does not begin with the smaller" in fork.message
        )
    watch.ledger.rewrite(lines)
    watch.ledger.publish()
    report = watch.look()
    assert [finding.kind for finding in report.findings] == ["fork"], "the ledger was forked, whatever it shows now"
    assert report.size == 300
    assert [finding.kind for finding in watch.monitor().acknowledge()] == ["fork"]
    assert watch.kinds() == []


def test_entries_that_break_the_chain_are_named_and_kept_until_they_are_acknowledged(watch: Watch) -> None:
    watch.ledger.grow(2)
    first, second = map(decode_entry, watch.ledger.lines)
    third = sealed(some_anchor(3), 3, first.hash, second.time)
    wrong_time = sealed(some_anchor(4), 4, third.hash, second.time - HOUR)
    wrong_anchor = sealed("nonsense", 5, wrong_time.hash, second.time)
    watch.ledger.rewrite([first, second, third, wrong_time, wrong_anchor])
    watch.ledger.lines.append(b'{"x": 1}')
    watch.ledger.publish()
    found = {finding.number: finding.message for finding in watch.look().findings if finding.kind == "entry"}
    assert list(found) == [3, 4, 5, 6]
    assert "entry 3 does not follow entry 2" in found[3]
    assert "ledger entry 4 is dated" in found[4]
    assert "invalid anchor string 'nonsense'" in found[5]
    assert "invalid ledger entry" in found[6]
    again = sealed(some_anchor(7), 7, "0" * 64, watch.clock.now())
    watch.ledger.lines.append(msgspec.json.encode(again))
    watch.ledger.publish()
    report = watch.look()
    assert (len(report.findings), report.audited) == (4, 7), "after an entry that is none, the chain begins anew"
    watch.monitor().acknowledge()
    assert watch.kinds() == []


def test_an_entry_that_is_dated_back_or_ahead_is_found(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    watch.look()
    watch.clock.advance(3 * 3600)
    watch.look()
    (only,) = map(decode_entry, watch.ledger.lines)
    back = sealed(some_anchor(2), 2, only.hash, watch.clock.now() - HOUR)
    ahead = sealed(some_anchor(3), 3, back.hash, watch.clock.now() + HOUR)
    watch.ledger.rewrite([only, back, ahead])
    watch.ledger.publish()
    found = watch.look().findings
    assert [(finding.kind, finding.number) for finding in found] == [("time", 2), ("time", 3)]
    assert "entry 2 is backdated" in found[0].message
    assert "at 2023-11-15T01:13:20" in found[0].message
    assert "entry 3 has a time in the future" in found[1].message


def test_entries_that_were_published_late_are_within_the_tolerance(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    watch.look()
    watch.ledger.grow(1)
    watch.clock.advance(500)
    watch.look()
    watch.ledger.publish()
    assert watch.kinds(tolerance=600 * MICROSECONDS) == []


def test_a_time_is_compared_with_the_look_before_the_entry_even_if_entries_are_read_later(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    watch.look()
    watch.ledger.grow(1)
    watch.ledger.publish()
    bundle = watch.file("tile/entries/000.p/2")
    good = bundle.read_bytes()
    bundle.unlink()
    watch.clock.advance(60)
    assert watch.kinds() == ["tiles"]
    watch.clock.advance(7200)
    watch.look()
    bundle.write_bytes(good)
    assert watch.kinds() == [], "the entry was signed in time, only its text was missing"


def test_a_ledger_that_is_silent_for_too_long_is_found_until_it_goes_on(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    assert watch.kinds(silence=HOUR) == []
    watch.clock.advance(3601)
    (finding,) = watch.look(silence=HOUR).findings
    assert (finding.kind, "no new checkpoint since 2023-11-14T22:13:20Z; the limit is 1 h" in finding.message) == (
        "silence",
        True,
    ), finding
    watch.url, url = "http://127.0.0.1:9/", watch.url
    assert watch.kinds(silence=HOUR) == ["unavailable", "silence"]
    watch.url = url
    watch.ledger.grow(1)
    watch.ledger.publish()
    assert watch.kinds(silence=HOUR) == []


def test_logs_of_other_programs_are_followed_by_their_hashes(watch: Watch) -> None:
    watch.ledger.lines = [b"entry %d" % number * (number % 7) for number in range(700)]
    watch.ledger.publish()
    assert (watch.kinds(entries="any"), watch.look(entries="any").audited) == ([], 700)
    watch.ledger.lines += [b"\x00" * 60_000, b""]
    watch.ledger.publish()
    assert (watch.kinds(entries="none"), watch.look(entries="none").audited) == ([], None)
    assert (watch.kinds(entries="any"), watch.look(entries="any").audited) == ([], 702)
    watch.ledger.lines[3] = b"changed"
    watch.ledger.publish()
    for entries in ("any", "none"):
        assert watch.kinds(entries=entries) == ["fork"]


def test_a_monitor_that_is_stopped_resumes_where_it_was(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 256)
    watch.ledger.grow(1_000)
    watch.ledger.publish()
    audited = [watch.monitor().look(lambda: True).audited for _ in range(4)]
    assert audited == [256, 512, 768, 1_000]
    watch.ledger.grow(30)
    watch.ledger.publish()
    assert (watch.look().findings, watch.look().audited) == ((), 1_030)


def test_a_state_that_is_damaged_or_of_another_ledger_is_an_error_that_says_what_to_do(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    watch.look()
    assert watch.state.path.stat().st_mode & 0o777 == 0o600
    other = PublishedLedger(watch.ledger.folder, "example.org/other")
    other.grow(1)
    other.publish()
    with pytest.raises(
        MonitorStateError, match=r"belongs to the ledger example.org/anchors, .* use a separate state file"
    ):
        watch.look(policy=trusting([other.key.verifier_key]))
    watch.state.path.write_text("{", "utf-8")
    with pytest.raises(MonitorStateError, match=r"is damaged .* restore the file from its newest backup"):
        watch.look()


def test_a_checkpoint_that_nobody_trusted_signed_is_not_followed(watch: Watch) -> None:
    watch.ledger.grow(3)
    watch.ledger.publish()
    watch.look()
    watch.ledger.grow(1)
    watch.ledger.publish(SigningKey(watch.ledger.key.name, bytes(32)))
    report = watch.look()
    assert [finding.kind for finding in report.findings] == ["signature"]
    assert report.size == 3
    assert watch.kinds(policy=TrustPolicy(logs=(SigningKey("example.org/x", bytes(32)).verifier_key,))) == ["signature"]


def test_many_findings_are_counted_and_a_hundred_kept(watch: Watch) -> None:
    watch.ledger.lines = [b"%d" % number for number in range(300)]
    watch.ledger.publish()
    report = watch.look()
    assert (len(report.findings), report.more_findings) == (100, 200)
    state = watch.state.read()
    assert state is not None
    assert state.more_findings == 200
    fork = finding("fork", "two trees", 1, notes=("one", "other"))
    assert state.with_findings([fork]).findings[-1] == fork


def test_entries_that_are_withheld_for_many_looks_are_still_found_to_be_backdated() -> None:
    state = MonitorState(origin="o", head="h", head_at=1, cosigned_at=1)
    for step in range(1_000):
        state = state.with_published(10 + step, 100 + step)
    assert len(state.published) <= 65
    assert state.unpublished_until(11) == 100
    assert state.unpublished_until(12) == 101
    bounds = [state.unpublished_until(11 + step) for step in range(1_000)]
    assert all(bound is not None and bound <= 100 + step for step, bound in enumerate(bounds))
    assert bounds[-1] == 1_099


class Quorum:
    """The policy of *watch* with one witness, which signs what it is told to."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.witness = watch, TestWitness("example.net/w")
        watch.rules = msgspec.structs.replace(
            watch.rules,
            policy=TrustPolicy(logs=(watch.ledger.key.verifier_key,), witnesses={"W": self.witness.key}, quorum="W"),
        )

    def cosigned(self) -> bytes:
        return encode_note(self.witness.cosign(parse_note(self.watch.ledger.signed().data)))


def test_the_newest_cosigned_checkpoint_is_followed_beside_the_newest(watch: Watch) -> None:
    quorum = Quorum(watch)
    watch.ledger.grow(3)
    watch.ledger.publish()
    report = watch.look()
    assert (report.findings, report.size, report.cosigned, report.witnesses) == ((), 3, 0, ())
    old = quorum.cosigned()
    watch.ledger.publish(cosigned=old)
    assert (watch.look().cosigned, watch.look().witnesses) == (3, ("W",))
    watch.ledger.grow(2)
    watch.ledger.publish(cosigned=old)
    report = watch.look()
    assert (report.findings, report.size, report.cosigned) == ((), 5, 3), "the newest is not cosigned yet"
    newer = quorum.cosigned()
    watch.ledger.publish(cosigned=newer)
    assert watch.look().cosigned == 5
    watch.ledger.grow(1)
    watch.ledger.publish(cosigned=old)
    assert watch.kinds() == ["rollback"], "an old cosigned checkpoint in place of a newer one"
    watch.ledger.publish()
    assert (watch.kinds(), watch.look().cosigned) == ([], 5), "that it is not published is for --silence"


def test_a_ledger_that_its_witnesses_do_not_cosign_is_silent(watch: Watch) -> None:
    """As for a client that is shown a fork from the beginning: no witness signs what it does not know."""
    quorum = Quorum(watch)
    watch.ledger.grow(1)
    watch.ledger.publish(cosigned=quorum.cosigned())
    assert watch.kinds(silence=HOUR) == []
    for _ in range(3):
        watch.clock.advance(1500)
        watch.ledger.grow(1)
        watch.ledger.publish()
        found = watch.look(silence=HOUR).findings
    assert [finding.kind for finding in found] == ["silence"]
    assert "no new checkpoint with the quorum of witnesses since" in found[0].message
    watch.ledger.publish(cosigned=quorum.cosigned())
    assert watch.kinds(silence=HOUR) == []


def test_a_cosigned_checkpoint_of_another_tree_is_a_fork(watch: Watch) -> None:
    quorum = Quorum(watch)
    watch.ledger.grow(5)
    other = quorum.cosigned()
    watch.ledger.rewrite([])
    watch.ledger.grow(7, salt=1)
    watch.ledger.publish()
    (watch.ledger.folder / "checkpoint.cosigned").write_bytes(other)
    (fork,) = watch.look().findings
    assert (fork.kind, fork.checkpoints[1]) == ("fork", other.decode())


def test_entries_that_were_only_hashed_are_read_again_when_they_are_to_be_checked(watch: Watch) -> None:
    watch.ledger.lines = [b"nonsense"]
    watch.ledger.publish()
    assert watch.kinds(entries="any") == []
    assert watch.kinds() == ["entry"]


def test_two_monitors_do_not_look_at_once_with_one_state(watch: Watch) -> None:
    watch.ledger.grow(1)
    watch.ledger.publish()
    with watch.state.exclusive(), pytest.raises(MonitorBusyError, match="another monitor uses the state"):
        watch.look()
    assert watch.kinds() == []


def test_long_entries_are_read_in_smaller_parts(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 100_000)
    watch.ledger.lines = [b"x" * 1_000 + b"%d" % number for number in range(700)]
    watch.ledger.publish()
    parts = [watch.monitor(entries="any").look(lambda: True).audited for _ in range(3)]
    assert parts == [256, 512, 700]


def test_what_an_entry_says_does_not_flood_the_report(watch: Watch) -> None:
    watch.ledger.lines = [b'{"' + b"\x1b[31m" * 5_000 + b'":1}', b'{"%s":1}' % (b"y" * 60_000)]
    watch.ledger.publish()
    for each in watch.look().findings:
        assert len(each.message) <= 1_010
        assert "\x1b" not in each.message
