"""``millstream mill`` from the outside: a node's folder, its policies, damage, and exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.cid import cid_of
from millstream.mill.reports.archive import decode_report
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import encode_report
from millstream.node import Node
from millstream.node.reports import report_anchor
from millstream.settings import load_settings
from millstream.stores import LocalStore, StoreError
from millstream.testing.damage import flip_bit, remove
from millstream.testing.waiting import until

Run = Callable[..., tuple[int, list[Any]]]

POLICY = {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": copy} for copy in ("two", "three")]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's folder with three stores, a policy that copies from the first to the others, and four items."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    stores = [f'[stores.{name}]\nurl = "file://{folder}/stores/{name}"\n' for name in ("one", "two", "three")]
    (folder / "millstream.toml").write_text("\n".join(stores))
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    write_policy(folder, POLICY)
    for name in ("one", "two", "three"):
        (folder / "stores" / name).mkdir(parents=True)
    store = local(folder, "one")
    store.create_space("s")
    for number in range(4):
        store.put("s", f"item {number}", io.BytesIO(b"body %d" % number))
    return folder


def write_policy(folder: Path, policy: Any) -> None:
    (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps(policy))


def local(folder: Path, store: str) -> LocalStore:
    return LocalStore(folder / "stores" / store)


@pytest.fixture
def mill(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command with ``--json``; its exit code and what it printed."""

    def call(*arguments: str) -> tuple[int, list[Any]]:
        code = run(["mill", *arguments, "--data", str(data), "--json"])
        return code, [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    return call


def test_copies_are_made_checked_broken_found_and_repaired(data: Path, mill: Run) -> None:
    code, (to_two, to_three, tally) = mill("duplicate")
    assert (code, to_two["copies"], to_three["copies"], tally["done"]) == (0, 4, 4, 8)
    code, (again, _, nothing) = mill("duplicate")
    assert (code, again["same"], again["tasks"], nothing["done"]) == (0, 4, 0, 0)
    code, reports = mill("check")
    assert code == 0
    assert {(r["store"], r["result"], r["listed"], r["coverage"]) for r in reports} == {
        (store, "SUCCESS", 4, 1) for store in ("one", "two", "three")
    }
    flip_bit(local(data, "two").path_of("s", "item 1"))
    remove(local(data, "three").path_of("s", "item 2"))
    code, reports = mill("check", "--space", "s")
    assert code == 1
    assert [(r["store"], [f["row"] for f in r["findings"]]) for r in reports] == [
        ("one", []),
        ("three", ["B18"]),
        ("two", ["B3"]),
    ]
    assert mill("repair")[0] == 0
    assert mill("check")[0] == 0
    code, latest = mill("report", "two", "s")
    assert (code, latest[0]["result"], len(latest)) == (0, "SUCCESS", 1)
    assert latest[0]["previous"] is not None


def test_a_named_item_is_repaired_or_refused_with_the_reason(data: Path, mill: Run) -> None:
    mill("duplicate")
    flip_bit(local(data, "two").path_of("s", "item 1"))
    _, (plan,) = mill("repair", "s", "item 1", "--dry-run")
    assert (plan["decision"], plan["actions"][0]["store"]) == ("repair", "two")
    assert mill("repair", "s", "item 1")[0] == 0
    for seed, store in enumerate(("one", "two", "three")):
        flip_bit(local(data, store).path_of("s", "item 2"), seed)
    code, (event,) = mill("repair", "s", "item 2")
    assert (code, event["healed"]) == (1, False) and "no copy has the recorded checksum" in event["reason"]


def test_a_repair_of_the_queue_prints_the_reason_of_each_refusal(data: Path, mill: Run) -> None:
    mill("duplicate")
    for seed, store in enumerate(("one", "two", "three")):
        flip_bit(local(data, store).path_of("s", "item 2"), seed)
    assert mill("check")[0] == 1
    code, told = mill("repair")
    assert code == 1
    assert any("no copy has the recorded checksum" in one.get("reason", "") for one in told)


def test_a_damaged_record_beside_a_copy_is_named_and_repaired_from_the_queue(data: Path, mill: Run) -> None:
    mill("duplicate")
    for sidecar in (data / "stores" / "two" / ".millstream" / "sidecars" / "s").rglob("*.json"):
        sidecar.write_bytes(b"garbage")
    code, (_, _, report) = mill("check", "--space", "s")
    assert (code, report["store"], report["kinds"]) == (1, "two", {"B27 damaged-record": 4})
    code, (tally,) = mill("repair")
    assert (code, tally["done"]) == (0, 4)
    assert mill("check")[0] == 0


def test_bytes_that_were_forged_alike_in_all_copies_are_named_until_a_person_accepts_them(
    data: Path, mill: Run
) -> None:
    mill("duplicate")
    for store in ("one", "two", "three"):
        local(data, store).put("s", "item 1", io.BytesIO(b"forged"))  # with a sidecar that fits them
    code, reports = mill("check")
    assert code == 1
    assert [[(f["row"], "millstream mill accept" in f["detail"]) for f in r["findings"]] for r in reports] == [
        [("B9", True)] * 1
    ] * 3
    code, (event,) = mill("repair", "s", "item 1")
    assert (code, event["healed"]) == (1, False)
    assert "all copies have the same content, but the manifest has another checksum" in event["reason"]
    assert mill("repair", "s", "item 1", "--restore-source")[0] == 1  # nobody has what was recorded
    assert mill("check")[0] == 1
    assert mill("accept", "two", "s", "item 1")[0] == 1
    code, (accepted,) = mill("accept", "one", "s", "item 1")
    assert (code, accepted["size"]) == (0, 6)
    assert mill("duplicate")[0] == 0
    assert mill("check")[0] == 0


def test_a_deletion_reaches_the_copies_only_once_it_is_recorded(data: Path, mill: Run) -> None:
    mill("duplicate")
    local(data, "one").delete("s", "item 0")
    code, (plan, *_) = mill("duplicate")
    assert (code, plan["held"], plan["held_examples"]) == (0, 1, ["item 0"])
    assert mill("forget", "one", "s", "item 0") == (0, [{"tombstones": 1}])
    assert mill("duplicate", "--dry-run")[1][0]["deletes"] == 1
    assert mill("duplicate")[0] == 0
    for store in ("two", "three"):
        assert [entry.content_id for entry in local(data, store).entries("s")] == ["item 1", "item 2", "item 3"]


def test_the_deletion_of_an_item_that_no_store_has_is_recorded_for_its_copies_too(data: Path, mill: Run) -> None:
    mill("duplicate")
    for store in ("one", "two", "three"):
        local(data, store).delete("s", "item 0")
    local(data, "two").delete("s", "item 1")
    assert mill("check")[0] == 1
    assert mill("forget", "two", "s", "item 1") == (0, [{"tombstones": 1}])  # a copy: the others keep theirs
    assert mill("forget", "one", "s", "item 0") == (0, [{"tombstones": 1}])
    assert mill("duplicate")[0] == 0
    assert mill("check")[0] == 0
    for store in ("one", "two", "three"):
        assert [entry.content_id for entry in local(data, store).entries("s")] == ["item 1", "item 2", "item 3"]


def test_an_id_of_which_nothing_is_known_gets_no_tombstone(
    data: Path, mill: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    local(data, "one").delete("s", "item 0")
    told = mill("forget", "one", "s", "item 0", "itm 0")
    assert told == (3, [{"tombstones": 1, "unknown": ["itm 0"]}])
    assert run(["mill", "forget", "one", "s", "itm 0", "--data", str(data)]) == 3
    printed = capsysbinary.readouterr()
    assert b"unknown item 'itm 0'" in printed.err and printed.out == b""
    local(data, "two").put("s", "put by hand", io.BytesIO(b"x"))
    assert mill("forget", "one", "s", "put by hand") == (0, [{"tombstones": 1}])  # a copy that nobody recorded


def test_a_policy_is_shown_and_linted(data: Path, mill: Run) -> None:
    code, (shown,) = mill("policy", "show")
    assert (code, shown["policy"]["defaultPolicies"]) == (0, POLICY["defaultPolicies"])
    assert mill("policy", "lint") == (0, [])
    write_policy(data, {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": "nine"}]})
    code, (warned,) = mill("policy", "lint")
    assert (code, warned["code"], warned["position"]) == (1, "unknown-store", {"line": 1, "column": 22})


def test_a_policy_is_shown_and_linted_without_the_database_of_the_node(
    data: Path, mill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_NODE__DATABASE", "postgresql://ada@127.0.0.1:9/node?sslmod=unknown")
    assert mill("policy", "show")[0] == 0
    assert mill("policy", "lint") == (0, [])


def test_a_mistyped_store_is_named_with_those_that_are_configured(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["mill", "report", "oen", "s"], ["restore", "s", "--test", "--from", "oen"]):
        assert run([*command, "--data", str(data)]) == 3
        assert "unknown store 'oen'; the configured stores are one, three, two" in capsys.readouterr().err


def test_what_is_saved_is_warned_of_at_once_beside_the_policies_of_others(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back = data / "back.json"
    back.write_text('{"defaultPolicies": [\n  {"srcStoreId": "two", "destStoreId": "one"}]}')
    assert run(["mill", "policy", "save", "you", str(back), "--data", str(data)]) == 0
    assert "you: cycle: line 2, column 3: defaultPolicies: the policies of several" in capsys.readouterr().err
    assert run(["mill", "policy", "lint", "--data", str(data)]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["me", "you"]
    (data / "policies" / "me-duplication-policy.json").write_text("{")
    assert run(["mill", "policy", "save", "you", str(back), "--data", str(data)]) == 0
    assert "no policy is in force, because that of another account is invalid: me-dupl" in capsys.readouterr().err


def test_a_broken_policy_ends_with_the_exit_code_of_bad_input(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "policies" / "me-duplication-policy.json").write_text("{\n  oops")
    assert run(["mill", "duplicate", "--data", str(data)]) == 2
    assert "me-duplication-policy.json, line 2, column 3" in capsys.readouterr().err


def test_plain_output_is_for_people(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["policy", "show"], ["duplicate"], ["check"], ["report"], ["report", "--verify"]):
        assert run(["mill", *command, "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert "other spaces: one → two, one → three" in out
    assert "s one → two: 4 to copy, 0 to compare, 0 to delete, 0 unchanged" in out
    assert "two/s: SUCCESS: 4 listed, 4 checked, 0 explained, 0 failed, 24 B read, coverage 100.0%" in out


def test_a_space_that_was_never_checked_is_no_success(data: Path, mill: Run) -> None:
    code, reports = mill("report")
    assert (code, reports) == (1, [])


def test_a_store_that_is_not_there_is_no_success_and_keeps_no_other_from_being_checked(data: Path, mill: Run) -> None:
    mill("duplicate")
    (data / "stores" / "two").rename(data / "stores" / "unmounted")
    code, reports = mill("check")
    assert code == 1
    assert [(r["store"], r["result"]) for r in reports] == [
        ("one", "SUCCESS"),
        ("three", "SUCCESS"),
        ("two", "INCOMPLETE"),
    ]
    assert "mount its disk" in reports[2]["notes"][0]


def test_p9_a_store_of_which_nothing_is_known_and_nothing_can_be_listed_is_no_success(data: Path, mill: Run) -> None:
    mill("duplicate")
    assert mill("check")[0] == 0
    config = data / "millstream.toml"
    config.write_text(f'{config.read_text()}[stores.new]\nurl = "file://{data}/never-made"\n')
    assert mill("check", "--store", "one")[0] == 0
    assert mill("check")[0] == 1


def test_a_space_that_cannot_be_listed_keeps_no_other_from_being_copied(
    data: Path, mill: Run, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = local(data, "one")
    source.create_space("t")
    source.put("t", "item", io.BytesIO(b"body"))
    listed = LocalStore.columns

    def columns(self: LocalStore, space: str, **part: Any) -> Any:
        if space == "s":
            raise StoreError("the disk under 's' cannot be read")
        return listed(self, space, **part)

    monkeypatch.setattr(LocalStore, "columns", columns)
    assert run(["mill", "duplicate", "--data", str(data)]) == 1
    printed = capsysbinary.readouterr()
    assert "s one → two: the disk under 's' cannot be read" in printed.err.decode()
    assert "t one → two: 1 to copy" in printed.out.decode()
    monkeypatch.undo()
    assert [local(data, "three").has_space(space) for space in ("s", "t")] == [False, True]


def test_a_store_that_is_not_configured_any_more_hinders_neither_checks_nor_repairs_and_is_told_of(
    data: Path, mill: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    config, policy = data / "millstream.toml", {"defaultPolicies": [{"srcStoreId": "one", "destStoreId": "two"}]}
    config.write_text(config.read_text().replace(f'[stores.three]\nurl = "file://{data}/stores/three"\n', ""))
    write_policy(data, policy)
    flip_bit(local(data, "two").path_of("s", "item 1"))
    remove(local(data, "two").path_of("s", "item 2"))
    assert run(["mill", "check", "--data", str(data)]) == 1
    assert b"three: the manifest knows items in it, and no such store is configured" in capsysbinary.readouterr().err
    assert mill("repair")[0] == 0
    assert {(r["store"], r["result"]) for r in mill("check")[1]} == {("one", "SUCCESS"), ("two", "SUCCESS")}
    code, (made,) = mill("produce", "bits", "--once")
    assert (code, made["tasks"], [failure["what"] for failure in made["failures"]]) == (
        12, 8, ["the spaces of store 'three'"],
    )  # fmt: skip
    assert mill("check", "--store", "two")[0] == 0
    assert mill("reconcile") == (1, [])
    code, rebuilt = mill("rebuild", "content-index")
    assert (code, [one["store"] for one in rebuilt]) == (1, ["one", "two"])
    assert len(mill("report", "three", "s")[1]) == 0


def test_nothing_to_check_is_no_success(data: Path, mill: Run) -> None:
    assert mill("check", "--space", "nowhere")[0] == 3
    assert mill("check", "--store", "nowhere")[0] == 3


def test_a_worker_drains_or_ends_in_order_on_sigterm(data: Path, mill: Run) -> None:
    nothing = dict.fromkeys(("done", "failed", "dead", "waiting", "lost", "interrupted"), 0)
    assert mill("work", "--drain") == (0, [nothing])
    program = "import sys; from millstream.cli.main import run; sys.exit(run(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "mill", "work", "bit-integrity", "--data", str(data), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    with child.stdout, child.stderr:
        assert json.loads(child.stderr.readline())["message"] == "working on bit-integrity"
        child.send_signal(signal.SIGTERM)
        assert json.loads(child.stdout.read())["done"] == 0
        assert child.wait(30) == 0


def test_a_second_sigterm_ends_a_worker_whose_task_does_not_end(data: Path, mill: Run) -> None:
    mill("duplicate")
    mill("produce", "bits", "--once")
    program = """
import sys, threading
from millstream.cli.main import run
from millstream.mill.integrity.checker import BitChecker
def hang(*_, **__):
    print("hangs", flush=True)
    threading.Event().wait()
BitChecker.check_many = BitChecker.check = hang
sys.exit(run(sys.argv[1:]))
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program, "mill", "work", "bit-integrity", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    with contextlib.closing(child.stdout), contextlib.ExitStack() as stack:
        stack.callback(child.kill)
        assert child.stdout.readline() == b"hangs\n"

        def has_ended() -> bool:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(0.2) == -signal.SIGTERM
            return False

        until(has_ended, seconds=30)


def test_reports_are_chained_anchored_and_shown(
    data: Path, mill: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    for _ in range(2):
        assert mill("check")[0] == 0
    page = data / "page.html"
    assert run(["mill", "report", "--verify", "--html", str(page), "--data", str(data)]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert [line.split(":")[0] for line in lines] == ["one/s", "three/s", "two/s"]
    assert page.read_text().count("SUCCESS</strong>") == 3
    last = data / "reports" / "two" / "s" / "000002"
    assert last.with_suffix(".tsv").read_text().splitlines()[1].split("\t")[2:4] == ["two", "file"]
    report = json.loads(last.with_suffix(".json").read_bytes())
    report["bytes"] += 1
    last.with_suffix(".json").write_bytes(canonical_json(report))
    assert run(["mill", "report", "--verify", "--data", str(data)]) == 1
    assert b"two/s: " in (out := capsysbinary.readouterr().out) and b"1 of its reports are not in the ledger" in out
    first = data / "reports" / "one" / "s" / "000001.json"
    first.write_bytes(canonical_json({**json.loads(first.read_bytes()), "bytes": 7}))
    assert run(["mill", "report", "--verify", "--data", str(data)]) == 1
    out, err = capsysbinary.readouterr()
    assert [line.split(b":")[0] for line in out.splitlines()[:2]] == [b"three/s", b"two/s"]
    assert err.startswith(b"one/s: NOT VERIFIED: ") and b"does not continue the previous report" in err
    assert run(["mill", "report", "one", "s", "--verify", "--data", str(data)]) == 1


def test_newest_reports_that_were_removed_are_missed_in_the_ledger(
    data: Path, mill: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    for _ in range(2):
        assert mill("check")[0] == 0

    def verify(*place: str) -> tuple[int, str, str]:
        code = run(["mill", "report", "--verify", *place, "--data", str(data)])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    assert (verify()[0], verify()[2]) == (0, "")
    reports, kept = data / "reports" / "two" / "s", data / "kept"
    shutil.copytree(reports, kept)
    for file in reports.glob("000002.*"):
        file.unlink()
    code, out, _ = verify()
    assert (code, "not in the ledger" in out) == (1, False)
    assert "1 report in the ledger is missing: removed or changed; restore the reports from a backup\n" in out
    assert re.search(r"^missing: entry [456] of \d{4}-\d\d-\d\dT[\d:.]+Z, 1\.\w+$", out, re.MULTILINE)
    code, _, note = verify("two", "s")
    assert (code, "not checked: whether the newest reports were removed" in note) == (0, True)
    (unchained := data / "reports" / ".unchained").mkdir()
    for number in (2, 1):  # removed from the end of the chain, and put beside the chains
        shutil.copy(kept / f"00000{number}.json", unchained / f"{number}.json")
        (reports / f"00000{number}.json").unlink(missing_ok=True)
        code, out, _ = verify()
        assert (code, f"{3 - number} report" in out, "other chains" in out) == (1, True, False)
    mill("check")  # another report takes their place
    code, out, _ = verify()
    assert (code, "2 reports outside the chains are unknown: removed" in out, "missing" in out) == (1, True, False)
    assert len(re.findall(r"^unknown: entry [1-6] of \d{4}-\d\d-\d\dT[\d:.]+Z, 1\.\w+$", out, re.MULTILINE)) == 2
    shutil.rmtree(reports)
    assert verify()[0] == 1
    (other := data / "reports" / "two" / "other").mkdir()
    shutil.move(unchained / "1.json", other / "000001.json")
    code, _, error = verify()
    assert (code, "000001.json is a report on s in two: it was moved there" in error) == (1, True)
    shutil.rmtree(other)
    shutil.rmtree(unchained)
    code, out, _ = verify()
    assert (code, "3 reports in the ledger are missing" in out, "two/s: no report yet" in out) == (1, True, True)
    shutil.copytree(kept, reports)
    code, out, _ = verify()
    assert (code, "1 report in the ledger is missing" in out) == (1, True), "the one that took their place"


def test_reports_whose_entries_were_lost_are_anchored_again_with_the_next_report(
    data: Path, mill: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    mill("check")
    with Node.open(load_settings({"data": str(data)})[0]) as node:
        last = node.mill.reports.archive.latest("two", "s")
        assert last is not None
        for number in range(1, 4):  # as if the ledger was from a backup
            node.mill.reports.archive.save(msgspec.structs.replace(last, started_at=last.started_at + number))
    assert run(["mill", "report", "--verify", "--data", str(data)]) == 1
    assert "3 of its reports are not in the ledger" in capsysbinary.readouterr().out.decode()
    mill("check")
    with Node.open(load_settings({"data": str(data)})[0]) as node:
        archive, entries = node.mill.reports.archive, list(node.mill.reports.ledger_entries())
        places = [entries.index(report_anchor(decode_report(one))) for one in archive.stored("two", "s")]
    assert len(places) == 5 and places == sorted(places)
    assert run(["mill", "report", "--verify", "--data", str(data)]) == 0


def test_reports_of_a_node_that_became_a_member_are_missing_only_if_they_were_removed(
    data: Path, mill: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mill("duplicate")
    mill("check")
    other = ReportFolder(tmp_path / "other")

    def check_there(*, is_anchored: bool) -> None:
        with Node.open(load_settings({"data": str(data)})[0]) as node:
            archive = node.mill.reports.archive
            last = archive.latest("two", "s")
            assert last is not None
            saved = other.save(msgspec.structs.replace(last, started_at=last.started_at + 1, previous=None))
            if is_anchored:
                node.mill.reports.anchor(saved)
                archive.add_unchained(encode_report(saved))

    def verify() -> tuple[int, str]:
        code = run(["mill", "report", "--verify", "--data", str(data)])
        return code, capsysbinary.readouterr().out.decode()

    for _ in range(2):
        check_there(is_anchored=True)
    check_there(is_anchored=False)  # its process was killed
    check_there(is_anchored=True)
    mill("check")
    code, out = verify()
    assert (code, "missing" in out, "1 report outside the chains is unknown" in out) == (1, False, True)
    assert "2 reports of other chains" in out
    check_there(is_anchored=True)
    code, out = verify()
    assert (code, "4 reports of other chains" in out, "unknown" in out, "missing" in out) == (0, True, False, False)
    _, second, *_ = other.stored("two", "s")
    (data / "reports" / ".unchained" / f"{cid_of(second.data)}.json").unlink()
    code, out = verify()
    assert (code, "1 report in the ledger is missing" in out, "3 reports of other chains" in out) == (1, True, True)


def test_what_is_stored_is_counted_by_tasks(data: Path, mill: Run) -> None:
    mill("duplicate")
    code, sizes = mill("statistics", "--count")
    assert code == 0
    assert {(size["store"], size["items"], size["bytes"]) for size in sizes} == {
        (store, 4, 24) for store in ("one", "two", "three")
    }
    assert mill("statistics", "two")[1] == [size for size in sizes if size["store"] == "two"]
    config = data / "millstream.toml"
    config.write_text(config.read_text().replace("[stores.two]", '[stores.two]\nmost_bytes = "23B"'))
    code, found = mill("statistics")
    assert (code, found[-1]) == (1, {"store": "two", "items": 4, "bytes": 24, "most_bytes": 23, "over": True})
    assert mill("statistics", "one")[0] == 0


@pytest.mark.parametrize(
    "command",
    ["duplicate --space typo", "duplicate --space typo --dry-run", "audit typo", "statistics typo"],
)
def test_a_mistyped_name_is_no_success(command: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mill", "duplicate", "--data", str(data)]) == 0
    assert run(["mill", *command.split(), "--data", str(data)]) == 3
    assert "'typo'" in capsys.readouterr().err


def test_policies_that_cannot_be_read_are_no_success(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--data", str(data)]
    for command in ("duplicate", "check", "report"):
        assert run(["mill", command, *folder]) == 0
    (data / "policies" / "me-duplication-policy.json").write_text("{")
    for command, result in (("report", "SUCCESS"), ("check", "INCOMPLETE")):
        capsys.readouterr()
        assert run(["mill", command, *folder]) == 1
        printed = capsys.readouterr()
        assert "what the policies ask for is not known: " in printed.err and printed.out.count(result) == 3
    local(data, "one").delete("s", "item 1")
    assert run(["mill", "forget", "one", "s", "item 1", *folder]) == 2
    assert "me-duplication-policy.json" in capsys.readouterr().err


def test_a_space_that_could_not_be_counted_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--data", str(data)]
    assert run(["mill", "duplicate", *folder]) == run(["mill", "statistics", "--count", *folder]) == 0
    with contextlib.closing(sqlite3.connect(data / "node.db")) as database:
        refuses = "BEFORE INSERT ON mill_statistics WHEN NEW.store = 'two' BEGIN SELECT RAISE(ABORT, 'refused'); END"
        database.execute(f"CREATE TRIGGER refuses {refuses}")
        database.commit()
    capsys.readouterr()
    assert run(["mill", "statistics", "--count", *folder]) == 1
    printed = capsys.readouterr()
    assert printed.err == "two/s: could not be counted now: see `millstream queue dead storage-statistics`\n"
    assert [line.partition(":")[0] for line in printed.out.splitlines()] == ["one/s", "three/s", "two/s"]


def test_what_was_deleted_through_the_node_is_deleted_at_its_copies_before_the_audit_is_read(
    data: Path, mill: Run
) -> None:
    settings = data / "millstream.toml"
    settings.write_text(settings.read_text().replace("[stores.one]\n", "[stores.one]\naudited = true\n"))
    assert mill("duplicate")[0] == 0
    assert run(["store", "delete", "one", "s", "item 1", "--data", str(data)]) == 0
    local(data, "one").delete("s", "item 2")  # behind the node's back
    code, plans = mill("duplicate", "--dry-run")
    assert (code, [(plan["deletes"], plan["held"]) for plan in plans]) == (0, [(1, 1), (1, 1)])
    code, (*_, tally) = mill("duplicate")
    assert (code, tally["dead"]) == (0, 0)
    kept = ["item 0", "item 2", "item 3"]
    assert [[entry.content_id for entry in local(data, store).entries("s")] for store in ("two", "three")] == [kept] * 2


def test_commands_in_messages_quote_the_names_of_spaces(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local(data, "one").create_space("my photos")
    assert run(["mill", "accept", "one", "my photos", "absent", "--data", str(data)]) == 3
    assert "`millstream store list one 'my photos'` lists the items" in capsys.readouterr().err
    assert run(["mill", "report", "one", "my photos", "--data", str(data)]) == 3
    assert "run `millstream mill check --store one --space 'my photos'`" in capsys.readouterr().err


def test_commands_on_what_does_not_exist_end_with_3(
    data: Path, mill: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert mill("accept", "one", "s", "absent")[0] == 3
    assert mill("accept", "two", "s", "absent", "item 0")[0] == 1  # two is not the source of what it has
    assert mill("duplicate")[0] == 0
    assert mill("repair", "s", "absent")[0] == 3
    assert mill("repair", "s", "absent", "--dry-run")[0] == 3
    lines = str(tmp_path / "lines.tsv")
    assert run(["mill", "report", "one", "s", "--tsv", lines, "--data", str(data)]) == 3
    assert b"one/s: no report yet" in capsysbinary.readouterr().err
