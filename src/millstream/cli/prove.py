"""``millstream prove`` and ``millstream verify``: from one message to the ledger, and the check of that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from millstream.cli.common import data_options, json_option, print_json
from millstream.settings import Settings


@click.command()
@click.argument("log")
@click.argument("message_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@data_options
def prove(settings: Settings, log: str, message_id: int) -> None:
    """Print the proof that message ID of LOG is anchored: canonical JSON and a newline.

    It also lists the copies of the batch file with the time of their last verification. Exit code 3, with the reason,
    if the message or log does not exist or the message is in no anchored batch.
    """
    from millstream.node import Node

    with Node.open(settings) as node:
        proof = node.proofs.prove(log, message_id)
    sys.stdout.buffer.write(proof + b"\n")
    sys.stdout.buffer.flush()


@click.command()
@click.argument("proof", type=click.File("rb"))
@click.option(
    "--cas",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the CID files.",
)
@click.option("--ledger-head", metavar="HASH", help="Trusted hash of the anchor's ledger entry, or of a later one.")
@json_option
@data_options
def verify(settings: Settings, proof: BinaryIO, cas: Path | None, ledger_head: str | None, as_json: bool) -> None:
    """Verify a proof with the files that it names. Exit code 1, with the reason, if it is invalid.

    Files are read from --cas, or from the data folder. Without --ledger-head the chain is verified, but not that it is
    the ledger you trust.
    """
    from millstream.anchoring.local_cas import LocalCas
    from millstream.anchoring.proof import MAX_PROOF_BYTES, verify_proof
    from millstream.core.message import encode_line

    data = proof.read(MAX_PROOF_BYTES + 1)
    verified = verify_proof(data, LocalCas(cas or settings.folder / "cas"), ledger_head and ledger_head.lower())
    if as_json:
        print_json({**msgspec.structs.asdict(verified), "message": msgspec.Raw(encode_line(verified.message))})
        return
    print(f"message {verified.id} of log {verified.log} is in batch {verified.batch},")
    print(f"in file {verified.batch_file}, anchored as entry {verified.anchor} of the ledger:")
    print(encode_line(verified.message).decode("utf-8"))
    if verified.pinned:
        print(f"The pinned ledger head {ledger_head} covers it.")
    else:
        print(f"The ledger head {verified.ledger_head} is not pinned: compare it with one you trust (--ledger-head).")
