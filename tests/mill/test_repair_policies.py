"""A repair goes by the policies in force when it is made, not by those that its process read first."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest

from millstream.core.clock import VirtualClock
from millstream.mill.manifest_table import ManifestEvent
from millstream.mill.policies.saving import save_policy
from millstream.mill.settings import MillSettings
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores.protocol import StoreUnavailableError
from millstream.stores.settings import StoreSettings


def _policy(source: str, destination: str) -> bytes:
    return json.dumps({"defaultPolicies": [{"srcStoreId": source, "destStoreId": destination}]}).encode()


def _open_node(tmp_path: Path, clock: VirtualClock, names: str, **mill: str) -> Node:
    stores = {name: StoreSettings(url=f"file://{tmp_path / name}") for name in names}
    for name in stores:
        (tmp_path / name).mkdir()
    settings = Settings(data=str(tmp_path / "node"), stores=stores, mill=MillSettings(**mill))
    return Node.open(settings, clock, create=True)


def _fill(node: Node, clock: VirtualClock) -> None:
    """The same item, recorded, in every store."""
    sha256 = hashlib.sha256(b"old").hexdigest()
    for name, store in node.stores.providers.items():
        store.create_space("s")
        store.put("s", "letter", io.BytesIO(b"old"))
        node.stores.manifest.writer.record([ManifestEvent(name, "s", "letter", clock.now(), sha256, 3, "text/plain")])


def test_a_process_does_not_write_over_the_source_of_a_policy_that_another_process_has_reversed(tmp_path: Path) -> None:
    clock = VirtualClock()
    with _open_node(tmp_path, clock, "AB") as node:
        save_policy(node.policies.location, "acme", _policy("A", "B"))
        _fill(node, clock)
        repairer = node.mill.repairs.repairer
        repairer.plan("s", "letter")  # by now the process has read the policies

        save_policy(node.policies.location, "acme", _policy("B", "A"))  # as another process does
        node.stores.providers["B"].put("s", "letter", io.BytesIO(b"new, by the users of B"))
        clock.sleep(1)

        result = repairer.repair("s", "letter", "the check found another sum")

        assert not result.repaired
        assert node.stores.providers["B"].open("s", "letter").read() == b"new, by the users of B"


@pytest.mark.parametrize("now", [None, b"new, by the users of B"])
def test_a_repair_does_not_write_a_store_that_no_policy_copies_to_any_more(tmp_path: Path, now: bytes | None) -> None:
    clock = VirtualClock()
    with _open_node(tmp_path, clock, "ABC") as node:
        save_policy(node.policies.location, "acme", _policy("A", "C"))  # it was from A to B before
        _fill(node, clock)
        store = node.stores.providers["B"]
        store.delete("s", "letter")
        if now is not None:
            store.put("s", "letter", io.BytesIO(now))
        node.stores.providers["C"].delete("s", "letter")
        result = node.mill.repairs.repairer.repair("s", "letter", "a check found it")
        assert [event.store for event in result.events if event.healed] == ["C"]
        assert len(result.refused) == 1
        assert (store.open("s", "letter").read() if now else [*store.entries("s")]) == (now or [])


def test_without_the_disk_with_the_policies_nothing_is_repaired_or_accepted(tmp_path: Path) -> None:
    clock = VirtualClock()
    with _open_node(tmp_path, clock, "AB", policies=str(tmp_path / "disk")) as node:
        _fill(node, clock)
        node.stores.providers["A"].delete("s", "letter")
        for act in (lambda: node.mill.repairs.repairer.repair("s", "letter"), node.policies.require):
            with pytest.raises(StoreUnavailableError, match="mount the disk with the policies"):
                act()
        assert [*node.stores.providers["A"].entries("s")] == []
        save_policy(node.policies.location, "acme", _policy("A", "B"))
        clock.sleep(1)
        (refused,) = node.mill.repairs.repairer.repair("s", "letter").refused
        assert "the item vanished from there" in refused.reason
