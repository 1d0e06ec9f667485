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
from transparency.interop.program import GoProgram

from millstream.anchoring.errors import WitnessRefusalError
from millstream.anchoring.merkle import EMPTY_ROOT
from millstream.anchoring.transparency.signed_note import (
    SignedNote,
    VerifierKey,
    parse_ledger_key,
    parse_note,
    parse_verifier_key,
    verify_note,
)
from millstream.anchoring.witness import WitnessClient
from millstream.testing.waiting import until
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
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
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


def test_our_witness_cosigns_a_log_of_others(torchwood: GoProgram, tmp_path: Path) -> None:
    private, public = torchwood("key", "example.com/foreign")
    with WitnessProcess(tmp_path, [parse_ledger_key(public)]) as witness:
        assert torchwood("submit", witness.url, witness.key, private) == {"size": 300, "cosignatures": 3}
