"""A repair goes by the policies in force when it is made, not by those that its process read first."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

from millstream.core.clock import VirtualClock
from millstream.mill.manifest_table import ManifestEvent
from millstream.mill.policies.saving import save_policy
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores.settings import StoreSettings


def _policy(source: str, destination: str) -> bytes:
    return json.dumps({"defaultPolicies": [{"srcStoreId": source, "destStoreId": destination}]}).encode()


def test_a_process_does_not_write_over_the_source_of_a_policy_that_another_process_has_reversed(tmp_path: Path) -> None:
    clock = VirtualClock()
    stores = {name: StoreSettings(url=f"file://{tmp_path / name}") for name in "AB"}
    for name in stores:
        (tmp_path / name).mkdir()
    settings = Settings(data=str(tmp_path / "node"), stores=stores)
    with Node.open(settings, clock, create=True) as node:
        save_policy(node.policies.location, "acme", _policy("A", "B"))
        sha256, now = hashlib.sha256(b"old").hexdigest(), clock.now()
        for name, store in node.stores.providers.items():
            store.create_space("s")
            store.put("s", "letter", io.BytesIO(b"old"))
            node.stores.manifest.writer.record([ManifestEvent(name, "s", "letter", now, sha256, 3, "text/plain")])
        repairer = node.mill.repairs.repairer
        repairer.plan("s", "letter")  # by now the process has read the policies

        save_policy(node.policies.location, "acme", _policy("B", "A"))  # as another process does
        node.stores.providers["B"].put("s", "letter", io.BytesIO(b"new, by the users of B"))
        clock.sleep(1)

        result = repairer.repair("s", "letter", "the check found another sum")

        assert not result.repaired
        assert node.stores.providers["B"].open("s", "letter").read() == b"new, by the users of B"
