"""A node with very much behind its pages: messages, dead letters, spaces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.cli.main import run
from millstream.log import LogSpec, Message
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult, ManifestEvent
from millstream.mill.tasks import Duplicate, encode_task
from millstream.node import Node
from millstream.queue import queue_log
from millstream.queue.events import Died, event_message
from millstream.settings import load_settings

NOW = 1_760_000_000_000_000
STORES = ("primary", "second")
ITEMS = 5
"""Items of a space in each store."""

_STEP = 20_000
_SETTINGS = """
[stores.primary]
url = "file://{data}/stores/primary"
[stores.second]
url = "file://{data}/stores/second"
"""


class Crowd(msgspec.Struct, frozen=True):
    """How much lies on a node: messages of one log, dead letters of one queue, spaces on each of two stores."""

    messages: int
    dead_letters: int
    spaces: int

    def part(self, share: int) -> Crowd:
        """One in *share* of it."""
        return Crowd(self.messages // share, self.dead_letters // share, self.spaces // share)


WHOLE = Crowd(1_000_000, 100_000, 10_000)
"""What issue and docs speak of."""


def furnish_crowd(folder: Path, crowd: Crowd) -> Path:
    """Make a node in *folder* with all of *crowd*, and a policy that names a tenth of the spaces by name."""
    folder.mkdir()
    (folder / "millstream.toml").write_text(_SETTINGS, "utf-8")
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings, create=True) as node:
        _write_messages(node, crowd.messages)
        _bury(node, crowd.dead_letters)
        _record_spaces(node, crowd.spaces)
    policy = {
        "spaceDuplicationStorePolicies": {
            f"space-{number:05d}": [{"srcStoreId": "primary", "destStoreId": "second"}]
            for number in range(0, crowd.spaces, 10)
        },
        "defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}],
    }
    (folder / "policy.json").write_text(json.dumps(policy), "utf-8")
    assert run(["mill", "policy", "save", "local", str(folder / "policy.json"), "--data", str(folder)]) == 0
    return folder


def _write_messages(node: Node, count: int) -> None:
    log = node.logs.store.log(LogSpec("weather"))
    with log.writer() as writer:
        for first in range(0, count, _STEP):
            writer.append(
                [
                    Message(b'{"temp": %d, "unit": "C"}' % n, f"station-{n % 500}", "field", NOW + n * 1000)
                    for n in range(first, min(first + _STEP, count))
                ]
            )
    log.set_pointer("report", count // 2)


def _bury(node: Node, count: int) -> None:
    """Let *count* tasks die of forty causes, with words of their own each; written as a queue writes it."""
    with node.queues.open("duplication-high") as queue:
        for first in range(0, count, _STEP):
            last = min(first + _STEP, count)
            queue.put([encode_task(Duplicate("primary", "gone", "photos", f"{n}.jpg")) for n in range(first, last)])
            queue.lease(last - first, visibility=3600)
    log = node.logs.store.log(queue_log("duplication-high"), create=False)
    ids = [task.id for batch in log.read(1, log.last_id, gaps="all") for task in batch if task.key == "put"]
    with log.writer() as writer:
        writer.append([event_message(Died([one], NOW + one, _cause(n))) for n, one in enumerate(ids[-count:])])


def _cause(number: int) -> str:
    kind = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"[number % 40]
    return f"the provider answered in the manner {kind} to request {number:x}00{number} of 'item-{number}.jpg'"


def _record_spaces(node: Node, count: int) -> None:
    """Enter copies and what checks found of them; every fourth item of one store is damaged."""

    def copies() -> Iterator[tuple[str, str, str, int]]:
        for number in range(count):
            for store in STORES:
                for item in range(ITEMS):
                    yield store, f"space-{number:05d}", f"item-{item}.bin", number * ITEMS + item

    def digest(number: int) -> str:
        return hashlib.sha256(b"%d" % number).hexdigest()

    node.stores.manifest.writer.record(
        ManifestEvent(store, space, item, NOW, digest(n), 1000 + n) for store, space, item, n in copies()
    )
    node.stores.manifest.writer.apply(
        CheckResult(
            store, space, item, CheckVerdict.FAILURE if n % 4 == 3 and store == "second" else CheckVerdict.SUCCESS,
            "B1", "found", "as it was" if n % 4 != 3 else "another sum", NOW + n, 1000 + n, digest(n), digest(n),
            digest(n),
        )
        for store, space, item, n in copies()
    )  # fmt: skip
