"""Stage 7: one message, proven from the record to the anchor."""

from __future__ import annotations

import random

from millstream.anchoring import LocalCas, NotAnchoredError, verify_proof
from millstream.core.durable import write_durably
from millstream.demo.runner import DemoRun, StageResult


def prove_message(demo_run: DemoRun) -> StageResult:
    """Prove a random anchored message into ``proof.json``, and verify that with nothing but the files it names."""
    node, last_id = demo_run.node, demo_run.facts(f"publish-{demo_run.plan.log}")["last_id"]
    data = _any_proof(demo_run, last_id)
    path = demo_run.folder / "proof.json"
    write_durably(path, data + b"\n")
    head = demo_run.facts("anchor")["head"]
    shown = verify_proof(path.read_bytes(), LocalCas(node.folder / "cas"), head)
    record = shown.message
    record = shown.message
    facts = {
        "id": shown.id,
        "message": f"{shown.log} {shown.id}: {record.source} {record.key} = {record.body.decode('utf-8', 'replace')}",
        "batch": shown.batch,
        "batch file": shown.batch_file,
        "manifest": shown.manifest,
        "anchor": shown.anchor,
        "ledger head (pinned)": shown.ledger_head,
        "copies": ", ".join(f"{r.store}/{r.space} {(r.outcome or 'unchecked').upper()}" for r in shown.replicas),
        "proof": str(path),
    }
    return StageResult({"proof": 1}, len(data), facts)


def _any_proof(demo_run: DemoRun, last_id: int) -> bytes:
    """The proof of the first anchored message of a seeded draw; those that were rejected have none."""
    draw = random.Random(demo_run.plan.delivery.seed)
    while True:
        try:
            return demo_run.node.proofs.prove(demo_run.plan.log, draw.randint(1, last_id))
        except NotAnchoredError:
            continue
