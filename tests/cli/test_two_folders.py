"""A node whose state is on servers: a second folder with the same settings continues after the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring.journal_reader import JournalReader
from millstream.batching.local_state import UnsavedState
from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.documents import shared_key
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.mill.errors import ProducerBusyError
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.node import Node
from millstream.settings import load_settings
from support.server_databases import new_database

SETTINGS = """
[node]
database = "{url}"
[log]
store = "sqlite:///{shared}/log.db"
[anchoring]
cas = "file://{shared}/store/cas"
key_folder = "{shared}/keys"
[stores.primary]
url = "file://{shared}/stores/primary"
[batching]
window = "1h"
max_delay = "10m"
"""


def walk(clock: VirtualClock, shared: Path, url: str, *folders: Path) -> dict[str, Any]:
    """Send, batch and anchor 240 messages; every share of them on the node of another of *folders*, with the same
    settings. What came of it."""
    shared.mkdir()
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "millstream.toml").write_text(SETTINGS.format(url=url, shared=shared))
        with Node.open(load_settings({"data": str(folder)})[0], clock, create=True) as node:
            assert node.batching.batched_pairs() == ([("readings", "batches")] if number else [])
            _send(node, clock, 240 // len(folders), number)
            service, feed = node.batching.service("readings", "batches"), node.anchoring.feed("readings", "batches")
            service.step()
            feed.step(force=True)
            log = node.logs.store.log(LogSpec("readings"))
            found = {
                "batches": sorted(name for _, names in JournalReader(node.databases.own).names() for name in names),
                "messages": [body for batch in log.read() for body in batch.arrow.column("body").to_pylist()],
                "state": service.position,
            }
    return found


def _send(node: Node, clock: VirtualClock, count: int, share: int) -> None:
    with node.logs.store.log(LogSpec("readings")).writer() as writer:
        for number in range(share * count, (share + 1) * count):
            clock.advance(300.0)
            writer.append([Message(b"m%d" % number, "", f"s{number % 3}", clock.now())])


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_another_folder_goes_on_with_the_same_batches(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(request.getfixturevalue(server))
    with new_database(place, "one") as one, new_database(place, "three") as three:
        expected = walk(VirtualClock(), tmp_path / "one", one, tmp_path / "a")
        folders = [tmp_path / name for name in "bcd"]
        assert walk(VirtualClock(), tmp_path / "three", three, *folders) == expected
        assert len(expected["batches"]) > 10
        assert not any((folder / name).exists() for folder in folders for name in ("batching", "producers", "node.db"))
        proof = tmp_path / "proof.json"
        capsys.readouterr()
        assert run(["prove", "readings", "7", "--data", str(folders[0])]) == 0
        proof.write_text(capsys.readouterr().out)
        assert run(["verify", str(proof), "--data", str(folders[1])]) == 0
        assert "message 7 of log readings is in batch" in capsys.readouterr().out
        settings = load_settings({"data": str(folders[0])})[0]
        with Node.open(settings) as node, Node.open(settings) as other:
            assert isinstance(node.batching.state("batches"), UnsavedState), "that of the database"
            keys = [shared_key(each.databases.documents.document("console/session.key")) for each in (node, other)]
            assert keys[0] == keys[1] and len(keys[0]) == 32, "who signed in at one is signed in at the other"
            bits = node.databases.documents.document("producers/bits.json")
            with bits.alone(), pytest.raises(ProducerBusyError, match="another producer is using producers/bits"):
                other.mill.producers.bits(SpaceFilter()).run()
