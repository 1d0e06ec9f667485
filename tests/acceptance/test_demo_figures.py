"""The demo's figures add up, against the logs, the files and the batcher itself."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_runs import Run, run_demo, stage

from millstream.anchoring import LocalCas, ProofError, verify_proof
from millstream.anchoring.journal_reader import BatchFilter, JournalReader
from millstream.anchoring.proof import Trust
from millstream.anchoring.transparency.policy import trusting
from millstream.batching import Batcher, Event
from millstream.core.message import Message
from millstream.node import Node
from millstream.settings import Settings, load_settings
from support.commands import run_command

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def node(undisturbed: Run) -> Iterator[Node]:
    settings, _ = load_settings({"data": str(undisturbed.data)}, environment={})
    with Node.open(settings, create=True) as node:
        yield node


@pytest.fixture(scope="module")
def messages(node: Node) -> list[Message]:
    from millstream.log import LogSpec

    return [message for batch in node.logs.store.log(LogSpec("weather"), create=False).read() for message in batch]


@pytest.fixture(scope="module")
def outcome(node: Node, messages: list[Message]) -> tuple[dict[str, tuple[int, ...]], dict[int, str]]:
    """What the batcher makes of the log in this process: ids by batch, reasons by id."""
    import hashlib

    batcher = Batcher.of(node.batching.rules)
    batches, rejects = batcher.receive_many(
        [
            Event(m.id, m.source, m.key, m.event_time or 0, m.received_at or 0, hashlib.sha256(m.body).hexdigest())
            for m in messages
        ]
    )
    more_batches, more_rejects = batcher.flush()
    all_batches = [*batches, *more_batches]
    return {b.batch: b.events for b in all_batches}, {r.rejected: r.reason for r in [*rejects, *more_rejects]}


def anchored(data: Path, log: str = "weather") -> tuple[dict[str, list[int]], dict[int, str]]:
    """What the ledger and the files say of *log*, read with nothing but a JSON reader."""
    batches: dict[str, list[int]] = {}
    rejects: dict[int, str] = {}
    answer = run_command("anchor", "ledger", "--json", "--data", str(data))
    for line in answer.out.splitlines():
        manifest = json.loads((data / "cas" / json.loads(line)["anchor_string"].partition(".")[2]).read_bytes())
        if manifest["log"] != log:
            continue
        for file in manifest["files"]:
            lines = iter((data / "cas" / file["uri"]).read_bytes().splitlines())
            for header in map(json.loads, lines):
                assert header["batch"] not in batches
                batches[header["batch"]] = [json.loads(next(lines))["id"] for _ in range(header["count"])]
        for file in manifest.get("rejects", {}).get("files", []):
            for row in map(json.loads, (data / "cas" / file["uri"]).read_bytes().splitlines()):
                assert row["rejected"] not in rejects
                rejects[row["rejected"]] = row["reason"]
    return batches, rejects


@pytest.mark.smoke
def test_every_message_is_in_exactly_one_anchored_batch_or_has_a_reason(
    undisturbed: Run, messages: list[Message]
) -> None:
    batches, rejects = anchored(undisturbed.data)
    ids = [number for members in batches.values() for number in members] + list(rejects)
    assert sorted(ids) == [message.id for message in messages]
    counts = stage(undisturbed.figures, "batch")["counts"]
    assert (counts["messages"], counts["batches"], counts["rejected"]) == (len(messages), len(batches), len(rejects))
    assert counts["in batches"] >= 0.95 * 20_000


def test_flights_are_batched_and_anchored_too_and_their_batches_last(undisturbed: Run, node: Node) -> None:
    batches, rejects = anchored(undisturbed.data, "flights")
    counts = stage(undisturbed.figures, "batch-flights")["counts"]
    assert (counts["batches"], counts["rejected"]) == (len(batches), len(rejects))
    assert sorted([*itertools.chain(*batches.values()), *rejects]) == list(range(1, counts["messages"] + 1))
    page = JournalReader(node.databases.own).batches(BatchFilter(log="flights"), limit=100)
    longest = max((row.end or row.start) - row.start for row in page)
    assert 0 < longest <= node.settings.batching.window


@pytest.mark.smoke
def test_p5_determinism_the_batcher_in_process_makes_the_same_batches(
    undisturbed: Run, outcome: tuple[dict[str, tuple[int, ...]], dict[int, str]]
) -> None:
    batches, rejects = anchored(undisturbed.data)
    assert {name: sorted(ids) for name, ids in batches.items()} == {
        name: sorted(ids) for name, ids in outcome[0].items()
    }
    assert rejects == outcome[1]


@pytest.mark.smoke
def test_the_drill_found_what_was_broken_and_repaired_it(undisturbed: Run) -> None:
    figures = undisturbed.figures
    broken = {(d["store"], d["content_id"]) for d in stage(figures, "damage")["facts"]["damage"]}
    found = {(f["store"], f["content_id"]) for f in stage(figures, "sweep-2")["facts"]["findings"]}
    assert found == broken
    assert len(broken) == 2
    for number in (1, 3):
        spaces = stage(figures, f"sweep-{number}")["facts"]["spaces"]
        assert {row["result"] for row in spaces} == {"SUCCESS"}
        assert {row["coverage"] for row in spaces} == {1.0}
        assert {row["store"] for row in spaces} == {"primary", "second", "third"}


def test_a_thousand_random_messages_are_proven(node: Node, messages: list[Message], undisturbed: Run) -> None:
    _, rejects = anchored(undisturbed.data)
    draw = random.Random(5)
    chosen = draw.sample([message for message in messages if message.id not in rejects], 1000)
    keys = [key for key, _ in node.ledgers.keys("anchors").signing_until()]
    for message in chosen:
        shown = verify_proof(node.proofs.prove("weather", message.id), node.anchoring.cas, Trust(policy=trusting(keys)))
        assert (shown.message, shown.pinned) == (message, True)


def test_any_changed_byte_of_a_proof_makes_it_fail(node: Node, messages: list[Message], undisturbed: Run) -> None:
    _, rejects = anchored(undisturbed.data)
    good = [message.id for message in messages if message.id not in rejects]
    trust = Trust(policy=trusting([key for key, _ in node.ledgers.keys("anchors").signing_until()]))
    for number in random.Random(6).sample(good, 10):
        proof = node.proofs.prove("weather", number) + b"\n"
        verify_proof(proof, node.anchoring.cas, trust)
        for place in range(len(proof)):
            changed = bytearray(proof)
            changed[place] ^= 1 << (place % 8)
            with pytest.raises(ProofError):
                verify_proof(bytes(changed), node.anchoring.cas, trust)


def test_any_changed_file_makes_a_proof_fail_and_a_replay_find_it(undisturbed: Run, tmp_path: Path) -> None:
    data = shutil.copytree(
        undisturbed.data, tmp_path / "data", ignore=shutil.ignore_patterns("stores", "jobs", "spark")
    )
    (data / "millstream.toml").unlink()
    draw = random.Random(7)
    with Node.open(Settings(data=str(data)), create=True) as node:
        proof = node.proofs.prove("weather", _first_anchored(undisturbed.data))
        named = {json.loads(proof)[name] for name in ("manifest", "batch_file")}
    assert run_command("anchor", "replay", "--data", str(data)).code == 0
    for path in sorted((data / "cas").iterdir()):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.chmod(0o644)
        path.write_bytes(changed)
        answer = run_command("anchor", "replay", "--data", str(data))
        assert answer.code == 1
        assert path.name in answer.out + answer.err
        if path.name in named:
            with pytest.raises(ProofError):
                verify_proof(proof, LocalCas(data / "cas"))
        path.write_bytes(whole)


def _first_anchored(data: Path) -> int:
    batches, _ = anchored(data)
    return next(iter(batches.values()))[0]


def test_a_second_run_adds_nothing(undisturbed: Run, tmp_path: Path) -> None:
    data = shutil.copytree(undisturbed.data, tmp_path / "data")
    before = _state(data)
    figures = run_demo(data, "--limit", "20000")
    assert [row["stage"] for row in figures["stages"] if not row["earlier"]] == ["prove"]
    assert _state(data) == before


def _state(data: Path) -> dict[str, object]:
    files = [path for part in ("cas", "stores", "reports") for path in (data / part).rglob("*") if path.is_file()]
    log = run_command("log", "list", "--json", "--data", str(data))
    return {"files": sorted(str(path.relative_to(data)) for path in files), "log": log.out}


@pytest.mark.smoke
def test_the_report_is_one_page_that_fetches_nothing(undisturbed: Run) -> None:
    page = (undisturbed.data / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 4
    assert "SUCCESS" in page
    assert "verify proof.json --key ledger.key" in page
    for word in ("src=", "http://", "https://", "<script", "@import", "url("):
        assert word not in page


def test_other_options_on_the_same_folder_are_refused(undisturbed: Run) -> None:
    answer = run_command("demo", "--data", str(undisturbed.data), "--limit", "20000", "--seed", "1")
    assert answer.code == 2
    assert "other options" in answer.err


def test_the_commands_that_the_summary_names_work(undisturbed: Run, tmp_path: Path) -> None:
    at = ("--data", str(undisturbed.data))
    read = run_command("log", "read", "weather", "--from", "1", "--max", "3", "--jsonl", *at)
    assert [json.loads(line)["id"] for line in read.out.splitlines()] == [1, 2, 3]
    proof = run_command("prove", "weather", str(_first_anchored(undisturbed.data)), *at)
    (tmp_path / "proof.json").write_bytes(proof.out_bytes)
    key = run_command("anchor", "key", "show", *at).out
    (tmp_path / "ledger.key").write_text(key)
    checked = run_command(
        "verify",
        str(tmp_path / "proof.json"),
        "--key",
        str(tmp_path / "ledger.key"),
        "--cas",
        str(undisturbed.data / "cas"),
    )
    assert checked.code == 0, checked.err
    assert f"is signed by {key.strip()}" in checked.out
    assert run_command("mill", "check", *at).code == 0
