"""A proof that somebody made alone: message, files, ledger and key are of their choice, and all steps hold."""

from __future__ import annotations

import msgspec

from millstream.anchoring import LocalCas
from millstream.anchoring.batch_records import PROTOCOL, encode_header
from millstream.anchoring.cut_manifest import BatchFile, CutManifest, RejectList, anchor_string, encode_manifest
from millstream.anchoring.ledger import encode_entry, next_entry
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.proof import encode_proof
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.signed_note import SigningKey, encode_note, sign_note
from millstream.core.canonical import canonical_json
from millstream.testing.batches import make_batch


def self_made_proof(cas: LocalCas, *, log: str, batch: str, origin: str, body: str = "x") -> bytes:
    """The proof of the only message of *batch* of *log*, in a ledger *origin* that a stranger signed; fills *cas*."""
    made = make_batch([1])
    message = msgspec.json.decode(made.lines)
    line = canonical_json(message | {"body": body})
    header = msgspec.structs.replace(made.header, batch=batch, root=leaf_hash(line).hex())
    head = encode_header(header)
    data = head + b"\n" + line + b"\n"
    file = cas.put(data)
    manifest = CutManifest(
        config={},
        count=1,
        files=(BatchFile(1, len(data), 1, file),),
        log=log,
        messages=1,
        protocol=PROTOCOL,
        rejects=RejectList(),
        root=leaf_hash(head).hex(),
    )
    cid = cas.put(encode_manifest(manifest))
    entry = next_entry(None, anchor_string(1, cid), 1)
    text = Checkpoint(origin, 1, leaf_hash(encode_entry(entry))).text
    note = encode_note(sign_note(text, [SigningKey("stranger.example", bytes(32))]))
    members = {
        "batch_file": file,
        "batch_header": header,
        "batch_index": 0,
        "batch_path": [],
        "checkpoint": note.decode(),
        "entry": entry,
        "entry_path": [],
        "id": 1,
        "log": log,
        "manifest": cid,
        "message": msgspec.json.decode(line),
        "message_index": 0,
        "message_path": [],
        "replicas": [],
        "version": 2,
    }
    return encode_proof(msgspec.to_builtins(members))
