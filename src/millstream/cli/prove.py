"""``millstream prove`` and ``millstream verify``: prove that a message is anchored, and verify a proof."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click
import msgspec

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.core.durable import output_file
from millstream.core.errors import NotFoundError
from millstream.core.timestamps import format_timestamp
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.proof import VerifiedProof
    from millstream.anchoring.transparency.cosignatures import Cosignature
    from millstream.anchoring.transparency.policy import TrustPolicy

MAX_KEY_FILE_BYTES = 64 << 10


class PendingProofError(NotFoundError):
    """The proof exists, but the witnesses have not cosigned its checkpoint yet."""


@example("millstream prove weather 7 --tlog weather-7.tlog-proof > proof.json")
@click.command()
@click.argument("log")
@click.argument("message_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@click.option(
    "--tlog",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the part about the ledger to FILE, as a .tlog-proof for other verifiers; not with --chain.",
)
@click.option("--chain", is_flag=True, help="Print all ledger entries up to the head, for `verify --ledger-head`.")
@click.option(
    "--require-quorum",
    is_flag=True,
    help="Print no proof, and exit with code 3, if the quorum of witnesses is missing.",
)
@click.option("--no-timestamps", is_flag=True, help="Leave out time stamps, for readers with an earlier release.")
@data_options
def prove(
    settings: Settings,
    log: str,
    message_id: int,
    *,
    tlog: Path | None,
    chain: bool,
    require_quorum: bool,
    no_timestamps: bool,
) -> None:
    """Print the proof that message ID of LOG is anchored: canonical JSON and a newline.

    The proof ends with a signed checkpoint of the ledger (version 2 of the format), and stays small. If authorities
    have time-stamped the ledger (anchoring.timestamp_authorities), it also has the earliest time stamp of the entry by
    each of them (version 3). With --chain it ends with all ledger entries from the anchor on instead (version 1): about
    300 bytes each. Every proof lists the copies of the batch file with the time of their last verification.

    Exit code 3, with the reason, if the log or the message does not exist, or if the message is in no anchored batch.

    If the settings name witnesses (anchoring.witness_policy), the checkpoint is the newest with their quorum. For a
    message anchored after it, "pending" and the number of missing cosignatures are printed as a warning.
    """
    for name in [name for name, given in (("--tlog", tlog), ("--require-quorum", require_quorum)) if given and chain]:
        raise click.UsageError(f"{name} and --chain cannot be combined: a proof with --chain has no signed checkpoint")
    from millstream.node import Node

    with Node.open(settings, reads=True) as node:
        proof = node.proofs.prove(log, message_id, chain=chain, timestamps=not no_timestamps)
        missing = 0 if chain else node.proofs.missing_cosignatures(proof)
    if missing:
        needed = counted(missing, "more cosignature")
        text = f"pending: the checkpoint needs {needed} of witnesses; make the proof again later"
        if require_quorum:
            raise PendingProofError(text)
        click.echo(text, err=True)
    if tlog:
        _write_tlog_proof(tlog, proof)
    sys.stdout.buffer.write(proof + b"\n")
    sys.stdout.buffer.flush()


def _write_tlog_proof(path: Path, data: bytes) -> None:
    from millstream.anchoring.proof import Proof, decode_proof, tlog_proof
    from millstream.anchoring.transparency.tlog_proof import encode_tlog_proof

    proof = decode_proof(data)
    assert isinstance(proof, Proof)
    try:
        with output_file(path) as file:
            file.write(encode_tlog_proof(tlog_proof(proof)))
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from error


@example("millstream verify proof.json --key example.org.key")
@click.command()
@click.argument("proof", type=click.File("rb"))
@click.option(
    "--cas",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the files that the proof names (default: where the node keeps them).",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY|FILE",
    help="Trusted verifier key of the ledger, or a file of keys; repeatable.",
)
@click.option("--policy", type=click.File("rb"), metavar="FILE", help="Trusted ledgers and witnesses (tlog-policy).")
@click.option("--ledger-head", metavar="HASH", help="Trusted hash of a ledger entry, for proofs made with --chain.")
@click.option(
    "--timestamps",
    type=click.File("rb"),
    multiple=True,
    metavar="FILE",
    help="Trusted certificates (PEM) of time-stamping authorities; repeatable.",
)
@json_option
@data_options
def verify(
    settings: Settings,
    proof: BinaryIO,
    *,
    cas: Path | None,
    keys: tuple[str, ...],
    policy: BinaryIO | None,
    ledger_head: str | None,
    timestamps: tuple[BinaryIO, ...],
    as_json: bool,
) -> None:
    """Verify a proof with the files that it names. Exit code 1, with the reason, if it is invalid.

    PROOF is a file, or - for standard input. --key is a verifier key, as `anchor key show` prints it, or a file with
    one key per line. Without --key, --policy or --ledger-head the proof is verified, but not that its ledger is the one
    you trust.

    With --timestamps, one of the authorities with these certificates must have time-stamped the ledger with the entry
    of the message. The certificate that signed the time stamp must be valid now, or a later time stamp must renew it.
    """
    from millstream.anchoring.local_cas import LocalCas
    from millstream.anchoring.proof import MAX_PROOF_BYTES, Trust, verify_proof
    from millstream.anchoring.timestamps.authorities import MAX_CERTIFICATE_BYTES, parse_authorities
    from millstream.core.message import encode_line
    from millstream.node.anchoring import open_cas

    certificates = [file.read(MAX_CERTIFICATE_BYTES + 1) for file in timestamps]
    trust = Trust(
        ledger_head=ledger_head.lower() if ledger_head is not None else None,
        policy=trust_policy(keys, policy),
        authorities=parse_authorities(*certificates, names=[file.name for file in timestamps])
        if certificates
        else None,
    )
    data = proof.read(MAX_PROOF_BYTES + 2)
    verified = verify_proof(data, LocalCas(cas) if cas else open_cas(settings), trust)
    if as_json:
        print_json({**msgspec.structs.asdict(verified), "message": msgspec.Raw(encode_line(verified.message))})
        return
    echo_line(f"message {verified.id} of log {verified.log} is in batch {verified.batch},")
    echo_line(f"in file {verified.batch_file}, anchored as entry {verified.anchor} of the ledger:")
    echo_line(encode_line(verified.message).decode("utf-8"))
    _print_trust(verified, ledger_head)
    _print_timestamps(verified)


def _print_trust(verified: VerifiedProof, ledger_head: str | None) -> None:
    """Print which trusted signatures confirm the ledger of the proof."""
    checkpoint = verified.checkpoint
    if ledger_head is not None:
        echo_line(f"The pinned ledger head {ledger_head} covers it.")
    if checkpoint is None:
        if not verified.pinned:
            echo_line(
                f"The ledger head {verified.ledger_head} is not pinned: compare it with one you trust (--ledger-head)."
            )
    elif checkpoint.signed_by:
        signers = " and ".join(checkpoint.signed_by)
        echo_line(
            f"The checkpoint of {counted(checkpoint.size, 'entry')} of the ledger "
            f"{checkpoint.origin} is signed by {signers}."
        )
        if checkpoint.cosignatures:
            echo_line(f"These witnesses signed it: {', '.join(map(_signed_at, checkpoint.cosignatures))}.")
    elif not verified.pinned:
        echo_line(
            f"The checkpoint of the ledger {checkpoint.origin} is not verified: name a key or policy that you trust "
            "(--key, --policy)."
        )


def _signed_at(cosignature: Cosignature) -> str:
    time = cosignature.time
    return f"{cosignature.witness} at {'an invalid time' if time is None else format_timestamp(time)}"


def _print_timestamps(verified: VerifiedProof) -> None:
    """Print when the entry of the proof existed, and the authorities that confirm it."""
    unchecked = [stamp for stamp in verified.timestamps if stamp.status == "unchecked"]
    if unchecked:
        echo_line(
            f"Time stamps that are not verified: {len(unchecked)}. Name the certificates of authorities that you trust "
            "(--timestamps)."
        )
    times = [stamp.time for stamp in verified.timestamps if stamp.time is not None]
    for stamp in verified.timestamps:
        if stamp.status == "trusted" and stamp.time is not None and stamp.valid_until is not None:
            renewed = f", renewed {stamp.renewals} times" if stamp.renewals else ""
            echo_line(
                f"The entry is not later than {format_timestamp(stamp.time)} by {stamp.authority} (verifiable until "
                f"{format_timestamp(stamp.valid_until)}{renewed})."
            )
        elif stamp.status == "untrusted":
            echo_line(f"A time stamp is not trusted: {stamp.problem}.")
    if times:
        from millstream.mill.reports.page import age_text

        gap = min(times) - verified.anchored_at
        before = f"{age_text(gap)} before" if gap >= 0 else f"{age_text(-gap)} after"
        echo_line(f"The ledger dates it {format_timestamp(verified.anchored_at)}, {before} the earliest time stamp.")


def trust_policy(keys: tuple[str, ...], policy: BinaryIO | None) -> TrustPolicy | None:
    """The trust that the options state; None if they state none."""
    if not keys and policy is None:
        return None
    from millstream.anchoring.transparency.policy import MAX_POLICY_BYTES, TrustPolicy, parse_policy, with_ledgers
    from millstream.anchoring.transparency.signed_note import parse_ledger_key

    given = [parse_ledger_key(line) for key in keys for line in _key_lines(key)]
    if policy is None:
        return with_ledgers(TrustPolicy(logs=()), given)
    return with_ledgers(parse_policy(policy.read(MAX_POLICY_BYTES + 1), f"the trust policy {policy.name}"), given)


def _key_lines(key: str) -> list[str]:
    """The verifier keys of the option *key*: itself, or the lines of the file that it names.

    A text in the form of a key is never taken for a file's name: otherwise a program that can write to the working
    folder could substitute a key.
    """
    from millstream.anchoring.transparency.signed_note import looks_like_key

    if looks_like_key(key):
        return [key.strip()]
    path = Path(key)
    try:
        if len(key) > 4000 or not path.is_file():
            return [key]
        with path.open("rb") as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"cannot read the key file {key[:200]!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if len(data) > MAX_KEY_FILE_BYTES:
        raise click.UsageError(
            f"the key file {key[:200]!r} has more than {MAX_KEY_FILE_BYTES:,} bytes: name a file with one verifier "
            "key per line"
        )
    rows = [line.strip() for line in data.decode("utf-8", "replace").split("\n")]
    lines = [line for line in rows if line and not line.startswith("#")]
    if not lines:
        raise click.UsageError(f"the key file {key[:200]!r} contains no key: write one verifier key per line")
    return lines
