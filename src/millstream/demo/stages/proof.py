"""Stage 7: one message, proven from the record to the anchor."""

from __future__ import annotations

import random

from millstream.anchoring import NotAnchoredError, verify_proof
from millstream.anchoring.proof import Trust
from millstream.anchoring.transparency.policy import trusting
from millstream.core.durable import write_durably
from millstream.demo.runner import DemoRun, StageResult


def prove_message(demo_run: DemoRun) -> StageResult:
    """Prove a random anchored message into ``proof.json``, and verify that with nothing but the files it names."""
    node, last_id = demo_run.node, demo_run.facts(f"publish-{demo_run.plan.log}")["last_id"]
    data = _any_proof(demo_run, last_id)
    path = demo_run.folder / "proof.json"
    write_durably(path, data + b"\n")
    keys = [key for key, _ in node.ledgers.keys("anchors").signing_until()]
    shown = verify_proof(path.read_bytes(), node.anchoring.cas, Trust(policy=trusting(keys)))
    record, checkpoint = shown.message, shown.checkpoint
    assert checkpoint is not None
    facts = {
        "id": shown.id,
        "message": f"{shown.log} {shown.id}: {record.source} {record.key} = {record.body.decode('utf-8', 'replace')}",
        "batch": shown.batch,
        "batch file": shown.batch_file,
        "manifest": shown.manifest,
        "anchor": shown.anchor,
        "signed by": checkpoint.signed_by[0],
        "ledger entries": checkpoint.size,
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
