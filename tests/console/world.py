"""A node with something of everything on it, and the real server over it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millstream.anchoring.batch_records import EncodedBatch, decode_message
from millstream.batching import Reject
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.core.passwords import hash_password
from millstream.log import LogSpec
from millstream.mill.tasks import Duplicate, encode_task
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG, make_batch, make_batches
from millstream.testing.damage import flip_bit
from millstream.testing.dids import DidOwner
from support.forked_commands import ForkedCommand

SETTINGS = """
[stores.primary]
url = "file://{data}/stores/primary?mount=cas:cas://{data}/cas"
[stores.second]
url = "file://{data}/stores/second"
[stores.third]
url = "file://{data}/stores/third"
[mill.change_guard]
least = 1
"""

POLICY = {
    "spaceDuplicationStorePolicies": {},
    "defaultPolicies": [
        {"srcStoreId": "primary", "destStoreId": "second"},
        {"srcStoreId": "primary", "destStoreId": "third"},
    ],
    "spacesToIgnore": ["drafts"],
}
PEOPLE = {"vera": "viewer", "otto": "operator", "ada": "admin"}
"""Users of a node that is guarded, and their roles; the password of each is ``secret of NAME``."""

PHOTOS, DEAD, BATCHES = 14, 30, 60
DAMAGED = "2013/photo-03.txt"


def furnish(folder: Path) -> Path:
    """Make a node in *folder*: messages, batches, anchors, copies, a fault, a held plan, dead letters, a DID."""
    folder.mkdir()
    (folder / "millstream.toml").write_text(SETTINGS, "utf-8")
    data = ["--data", str(folder)]
    with _open(folder) as node:
        _fill_log(node)
        node.registry.instance.acceptance.submit_many([canonical_json(DidOwner("ada").create.request)])
        node.registry.instance.cut_once(force=True)
        _make_photos(node)
        _bury_tasks(node)
    _put_policy(folder, data)
    assert run(["mill", "duplicate", *data]) == 0
    assert run(["mill", "check", *data]) == 0
    _lose_originals(folder, data)
    assert run(["mill", "duplicate", "--space", "photos", *data]) == 5  # held
    flip_bit(next((folder / "stores/second/photos").rglob("photo-03.txt")))
    assert run(["mill", "check", "--store", "second", "--space", "photos", *data]) == 1
    return folder


def guard(folder: Path) -> Path:
    """Let only :data:`PEOPLE` onto the node in *folder*."""
    hashed = {name: hash_password(f"secret of {name}") for name in PEOPLE}
    users = [f'[console.users.{n}]\npassword = "{hashed[n]}"\nrole = "{role}"\n' for n, role in PEOPLE.items()]
    with (folder / "millstream.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(users))
    return folder


def basic(name: str, password: str | None = None) -> Mapping[str, str]:
    """The header with which a program signs in as *name*, one of :data:`PEOPLE` without a *password*."""
    text = base64.b64encode(f"{name}:{password or f'secret of {name}'}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


def did() -> str:
    """The DID that the node knows."""
    return f"did:sidetree:{DidOwner('ada').suffix}"


class Served:
    """`millstream serve` on *folder*, without a broker unless *broker* is given. *program* starts it in another way."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        address: str = "127.0.0.1:0",
        broker: bool = False,
        program: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        command = ["serve", "--data", str(folder), "--console", address, *options]
        command += ["--broker", "127.0.0.1:0"] if broker else ["--no-broker"]
        self.process: ForkedCommand | subprocess.Popen[str] = (
            subprocess.Popen([*program, *command], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
            if program
            else ForkedCommand(*command)
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("console ready on "):
                self.url = line.split()[-1]
                break
        else:
            raise AssertionError(f"the console did not start: exit code {self.process.wait()}")
        self.address = self.url.removeprefix("http://")

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body (parsed where it is JSON) and headers of one request; *body* is sent as JSON or as it is."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            typed = {} if isinstance(body, bytes | None) else {"Content-Type": "application/json"}
            connection.request(method, path, data, {**typed, **(headers or {})})
            response = connection.getresponse()
            found = response.read()
        finally:
            connection.close()
        is_json = "json" in response.headers.get("content-type", "")
        named = {name.lower(): text for name, text in response.headers.items()}
        return response.status, json.loads(found) if is_json else found.decode(), named

    def end(self) -> int:
        """Stop it in order; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()  # nothing where it has ended
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def serving(folder: Path, *options: str, **more: Any) -> Iterator[Served]:
    """A server that ends with the block."""
    served = Served(folder, *options, **more)
    try:
        yield served
    finally:
        assert served.end() == 0


def _open(folder: Path) -> Node:
    settings, _ = load_settings({"data": str(folder)})
    return Node.open(settings, create=True)


def _fill_log(node: Node) -> None:
    batches = list(make_batches(BATCHES))
    batches[4::7] = [_ended(batch, "conflict") for batch in batches[4::7]]
    batches[9::13] = [_ended(batch, "size") for batch in batches[9::13]]
    messages = sorted(
        (decode_message(line) for batch in batches for line in batch.lines.splitlines()), key=lambda m: m.id
    )
    last = messages[-1].id
    waiting = make_batch([last + 1])
    late = [msgspec.structs.replace(messages[-1], id=last + number) for number in (2, 3)]
    log = node.logs.store.log(LogSpec("weather"))
    with log.writer() as writer:
        writer.append([*messages, *map(decode_message, waiting.lines.splitlines()), *late])
    log.set_pointer("report", log.last_id - 40)
    for part, message in zip((batches[:40], batches[40:]), late, strict=True):
        node.anchoring.batch_writer.add("weather", part, [Reject(message.id, "late")], config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)
    node.anchoring.batch_writer.add("weather", [waiting], config=CONFIG)


def _ended(batch: EncodedBatch, cut: str) -> EncodedBatch:
    return msgspec.structs.replace(batch, header=msgspec.structs.replace(batch.header, cut=cut))


def _make_photos(node: Node) -> None:
    import io

    for name in ("second", "third"):
        assert name in node.stores.providers
    store = node.stores.providers["primary"]
    store.create_space("photos")
    for number in range(PHOTOS):
        text = f"photo {number} <b>&</b>".encode() * 50
        store.put("photos", f"2013/photo-{number:02d}.txt", io.BytesIO(text), mimetype="text/plain")


def _bury_tasks(node: Node) -> None:
    queue = node.queues.open("duplication-high")
    queue.put([encode_task(Duplicate("primary", "gone", "photos", f"<i>{n}</i>")) for n in range(DEAD)])
    for number, lease in enumerate(queue.lease(DEAD, visibility=60)):
        cause = f"no store 'gone' is configured (task {number})" if number % 3 else "the provider did not answer <soon>"
        queue.dead_letter(lease, cause=cause)


def _put_policy(folder: Path, data: list[str]) -> None:
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY, indent=2), "utf-8")
    assert run(["mill", "policy", "save", "local", str(policy), *data]) == 0


def _lose_originals(folder: Path, data: list[str]) -> None:
    names = [f"2013/photo-{number:02d}.txt" for number in (11, 12, 13)]
    for name in names:
        next((folder / "stores/primary/photos").rglob(name.rpartition("/")[2])).unlink()
    assert run(["mill", "forget", "primary", "photos", *names, *data]) == 0
