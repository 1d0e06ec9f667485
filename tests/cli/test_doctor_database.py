"""The doctor on a node whose database is on a server: what the server takes, and what is left in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.batching import Batcher
from millstream.batching.service_state import ServiceState, read_state, write_state
from millstream.cli.doctor_database import _packet, left_over_states
from millstream.cli.main import run
from millstream.core.documents import DocumentBusyError, FileDocument
from millstream.node import Node
from millstream.settings import Settings, load_settings
from support.server_databases import new_database


def settings_of(folder: Path, text: str) -> Settings:
    (folder / "millstream.toml").write_text(text, "utf-8")
    return load_settings(flags={"data": str(folder)}, environment={})[0]


def test_a_packet_is_compared_with_the_statement_of_the_largest_batch(tmp_path: Path) -> None:
    check = _packet(settings_of(tmp_path, ""), 1 << 20)
    assert (check.ok, check.optional) == (False, False)
    assert check.fix == "max_allowed_packet = 8M in the server's configuration"
    assert _packet(settings_of(tmp_path, ""), 16 << 20).ok, "the default of MariaDB"
    assert _packet(settings_of(tmp_path, "[anchoring]\nfile_bytes = 400_000\n"), 1 << 20).ok


def test_states_in_the_folder_that_no_process_reads_are_found(tmp_path: Path) -> None:
    for name in (
        "node.db",
        "log.db",
        "batching/a.state",
        "batching/a.lock",
        "producers/bits.json",
        "keys/anchors.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    settings = settings_of(tmp_path, "[node]\ndatabase = 'postgresql://a@b/c'\n")
    names = ["node.db", "batching/a.state", "producers/bits.json"]
    assert left_over_states(settings) == [tmp_path / name for name in names]
    settings = settings_of(tmp_path, "[node]\ndatabase = 'postgresql://a@b/c'\n[log]\nstore = 'postgresql://a@b/d'\n")
    assert left_over_states(settings) == [tmp_path / name for name in (*names, "log.db")]


@pytest.mark.served
def test_the_doctor_asks_the_server_and_names_what_a_move_has_left(
    tmp_path: Path, mariadb: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def doctor() -> dict[str, dict[str, object]]:
        capfdbinary.readouterr()
        run(["doctor", "--json", "--data", str(tmp_path)])
        return {row["name"]: row for row in map(json.loads, capfdbinary.readouterr().out.splitlines())}

    with Node.open(settings_of(tmp_path, ""), create=True) as node:
        node.batching.state("a.batches").write(b"{}")
        assert node.databases.own is not None
    assert "left-over states" not in doctor()
    with new_database(mariadb, "doctor") as database, new_database(mariadb, "empty") as empty:
        assert run(["node", "move", database, "--data", str(tmp_path)]) == 0
        settings = settings_of(tmp_path, f"[node]\ndatabase = '{database}'\n[batching]\nmax_count = 10\n")
        checks = doctor()
        assert checks["database packets"]["ok"], checks["database packets"]
        assert checks["left-over states"]["found"] == "node.db, batching/a.batches.state: not read by any process"
        assert "they date from the move" in str(checks["left-over states"]["fix"])
        with Node.open(settings) as node, node.batching.state_file("a.batches") as state:
            assert state.path.read_bytes() == b"{}"
            state.path.write_bytes(b"[ ]")
            with Node.open(settings) as other:
                assert other.batching.state("a.batches").read() == b"{}"
                state.keep()
                assert other.batching.state("a.batches").read() == b"[ ]"
            state.path.write_bytes(b"[]")
        with Node.open(settings) as node:
            assert node.batching.state("a.batches").read() == b"[]"
            with (
                pytest.raises(DocumentBusyError, match="start the other again"),
                node.batching.state_file("a.batches") as state,
            ):
                document = node.batching.state("a.batches")
                assert document.read() == b"[]"
                document.write(b"[1]")  # by the process before, at its end
                state.keep()
            with node.batching.state_file("a.batches"):
                pass
            assert node.batching.state("a.batches").read() == b"[1]"
            older, newer = (
                ServiceState("a", "a.batches", position, Batcher.of(node.batching.rules).snapshot())
                for position in (1, 2)
            )
            saved = node.batching.state("a.batches")
            saved.read()
            write_state(saved, older)
        write_state(FileDocument(tmp_path / "batching/a.batches.state"), newer)
        assert doctor()["unsaved states"]["found"] == "batching/a.batches.state: newer than in the node's database"
        with Node.open(settings) as node:
            assert read_state(node.batching.state("a.batches"), "a", "a.batches") == newer
            with node.batching.state_file("a.batches"):
                pass
        assert "unsaved states" not in doctor()
        assert doctor()["left-over states"]["found"] == "node.db: not read by any process"
        settings_of(tmp_path, f"[node]\ndatabase = '{empty}'\n")
        assert "was not filled from them" in str(doctor()["left-over states"]["fix"])
