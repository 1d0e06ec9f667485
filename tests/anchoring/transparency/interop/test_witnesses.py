"""Our ledger cosigned by a witness of others (litewitness), and a log of others cosigned by ours."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from transparency.interop.program import GoProgram, RefusedError

from millstream.anchoring.errors import ProofError, WitnessRefusalError
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import EMPTY_ROOT, leaf_hash
from millstream.anchoring.proof import Proof, decode_proof
from millstream.anchoring.transparency.policy import parse_policy
from millstream.anchoring.transparency.signed_note import (
    SignedNote,
    VerifierKey,
    parse_ledger_key,
    parse_note,
    parse_verifier_key,
    verify_note,
)
from millstream.anchoring.transparency.tlog_proof import verify_tlog_proof
from millstream.anchoring.witness import WitnessClient
from millstream.testing.ports import free_ports
from millstream.testing.waiting import until
from support.cosigned_node import CosignedNode
from support.witness_process import WitnessProcess
from support.witnessed_log import WitnessedLog

pytestmark = pytest.mark.clients

LOG = WitnessedLog("example.org/log", size=2_000)
FORK = WitnessedLog("example.org/log", size=2_000, branch="other")


@contextlib.contextmanager
def litewitness(program: Path, folder: Path, log: VerifierKey) -> Iterator[tuple[str, VerifierKey]]:
    """A litewitness that knows *log*, with its key in an agent of SSH: its address and its verifier key."""
    agent, database = folder / "agent", folder / "litewitness.db"
    with contextlib.ExitStack() as stack:
        keeper = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL)
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)
        until(agent.exists)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
        subprocess.run(["ssh-add", "-q", str(folder / "key")], check=True, env={"SSH_AUTH_SOCK": str(agent)})
        shown = subprocess.run(
            ["ssh-keygen", "-lf", str(folder / "key.pub")], check=True, capture_output=True, text=True
        )
        address = f"127.0.0.1:{free_ports(1)[0]}"
        options = ["-name", "example.net/lite", "-db", str(database), "-ssh-agent", str(agent), "-listen", address]
        with (folder / "log").open("wb") as lines:
            server = subprocess.Popen([str(program), *options, "-key", shown.stdout.split()[1]], stderr=lines)
        stack.callback(server.wait)
        stack.callback(server.kill)
        until(lambda: b"vkey=" in (folder / "log").read_bytes(), "the witness")
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
            connection.execute("INSERT INTO log VALUES (?, 0, ?)", (log.name, b64encode(EMPTY_ROOT).decode()))
            connection.execute("INSERT INTO key VALUES (?, ?)", (log.name, str(log)))
        until(lambda: _listens(address), "a port")
        key = (folder / "log").read_text("utf-8").partition("vkey=")[2].split()[0]
        yield f"http://{address}", parse_verifier_key(key)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_witness_of_others_cosigns_our_ledger_and_refuses_its_fork(torchwood: GoProgram, tmp_path: Path) -> None:
    program = torchwood.tool("filippo.io/torchwood/cmd/litewitness")
    with litewitness(program, tmp_path, LOG.key.verifier_key) as (url, key):
        client = WitnessClient(url, key)
        for size in (5, 5, 6, 300, 2_000):
            cosigned = client.cosign(LOG.checkpoint(size), LOG.path)
            note = SignedNote(parse_note(LOG.checkpoint(size)).text, cosigned.signatures)
            assert verify_note(note, [key])[0].time == cosigned.time
        fresh = WitnessClient(url, key)
        fresh.cosign(LOG.checkpoint(2_000), LOG.path)
        assert fresh.known_size == 2_000, "it was told by the witness"
        with pytest.raises(WitnessRefusalError) as smaller:
            fresh.cosign(LOG.checkpoint(300), LOG.path)
        assert smaller.value.known_size == 2_000
        with pytest.raises(WitnessRefusalError) as forked:
            fresh.cosign(FORK.checkpoint(2_000), FORK.path)
        assert forked.value.is_fork


def test_a_proof_file_of_a_node_has_the_cosignature_of_a_witness_of_others(
    torchwood: GoProgram, tmp_path: Path
) -> None:
    """Theirs and ours must both have signed; torchwood verifies the file, and refuses it without one of them."""
    program = torchwood.tool("filippo.io/torchwood/cmd/litewitness")
    with contextlib.ExitStack() as stack:
        node = CosignedNode(tmp_path)
        stack.callback(node.stop, *"ABC")
        (tmp_path / "lite").mkdir()
        url, key = stack.enter_context(litewitness(program, tmp_path / "lite", parse_ledger_key(node.ledger_key)))
        ours = node.witnesses["A"]
        lines = [f"log {node.ledger_key}", f"witness theirs {key} {url}", f"witness ours {ours.key} {ours.url}"]
        node.policy.write_text("\n".join([*lines, "group both all theirs ours", "quorum both", ""]), "utf-8")
        last = node.anchor(3)
        assert node.cosign()[1]["signed"] == ["ours", "theirs"]
        path, entry, plain = (tmp_path / name for name in ("x.tlog-proof", "entry", "plain.tlog-proof"))
        proof = node.command("prove", "readings", last, "--require-quorum", "--tlog", str(path))
        assert (proof.code, proof.err) == (0, "")
        made = decode_proof(proof.out_bytes)
        assert isinstance(made, Proof)
        entry.write_bytes(encode_entry(made.entry))
        assert torchwood("verify", node.policy, path, entry) is True
        signatures = path.read_text("utf-8").splitlines(keepends=True)
        plain.write_text("".join(line for line in signatures if "example.net/lite" not in line), "utf-8")
        with pytest.raises(RefusedError):
            torchwood("verify", node.policy, plain, entry)


def test_our_witness_cosigns_a_log_of_others_and_we_verify_its_proof_file(torchwood: GoProgram, tmp_path: Path) -> None:
    private, public = torchwood("key", "example.com/foreign")
    with WitnessProcess(tmp_path, [parse_ledger_key(public)]) as witness:
        answer = torchwood("submit", witness.url, witness.key, private)
        policy = parse_policy(f"log {public}\nwitness ours {witness.key}\nquorum ours\n".encode())
    assert (answer["size"], answer["cosignatures"]) == (300, 3)
    proof = str(answer["proof"])
    assert verify_tlog_proof(proof.encode(), leaf_hash(b"257"), policy).witnesses == ("ours",)
    without = "".join(
        line for line in proof.splitlines(keepends=True) if f"\N{EM DASH} {witness.key.name} " not in line
    )
    assert without != proof
    with pytest.raises(ProofError, match="too few witnesses"):
        verify_tlog_proof(without.encode(), leaf_hash(b"257"), policy)
