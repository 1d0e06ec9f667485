"""Following the registry of somebody else, as an operator does: commands and nodes in processes of their own."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from serving_nodes import Serving, open_node

from millstream.anchoring import LocalCas
from millstream.anchoring.registry.registry_replay import replay_registry
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner
from millstream.testing.waiting import until

JSON = {"content-type": "application/json"}


class Stranger:
    """A node whose registry others follow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.people: list[DidOwner] = []
        self.ledger, self.cas = folder.parent / "ledger.jsonl", folder / "cas"

    def write(self, batches: int, capsys: pytest.CaptureFixture[str]) -> None:
        with open_node(self.folder) as node:
            for _ in range(batches):
                operations = [person.update() for person in self.people[-2:]]
                self.people.append(DidOwner(f"person {len(self.people)}"))
                operations.append(self.people[-1].create)
                node.registry.instance.acceptance.submit_many([canonical_json(o.request) for o in operations])
                cut_all(node.registry.instance)
            node.registry.instance.acceptance.close()
        capsys.readouterr()
        assert run(["anchor", "ledger", "--ledger", "registry", "--json", "--data", str(self.folder)]) == 0
        self.ledger.write_text(capsys.readouterr().out, "utf-8")

    @property
    def dids(self) -> list[str]:
        return [f"did:sidetree:{person.suffix}" for person in self.people]


def cut_all(registry: Any) -> None:
    while registry.queue.claim(1000):
        pass
    registry.writer.cut(force=True)


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "stranger")


def resolutions(folder: Path, dids: list[str]) -> dict[str, Any]:
    with open_node(folder) as node:
        return {did: node.registry.instance.history.resolve(did) for did in dids}


def assert_same(stranger: Stranger, folder: Path) -> None:
    found = resolutions(folder, stranger.dids)
    assert found == resolutions(stranger.folder, stranger.dids)
    assert None not in found.values()
    with open_node(stranger.folder) as theirs, open_node(folder) as ours:
        registry = ours.registry.instance
        replayed = replay_registry(theirs.anchoring.cas, theirs.registry.ledger, registry.history, registry.versions)
        assert replayed.findings == ()


def observe(folder: Path, *arguments: object) -> int:
    return run(["anchor", "observe", "--data", str(folder), *map(str, arguments)])


class Gateway:
    """Serves the files in a folder; ``before`` is called with each path and may wait, or give other bytes."""

    def __init__(self, cas: Path) -> None:
        self.before: Callable[[str], bytes | None] = lambda _path: None
        self.asked = 0
        gateway, files = self, LocalCas(cas)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gateway.asked += 1
                cid = self.path.rpartition("/")[2]
                other = gateway.before(cid)
                with contextlib.suppress(ConnectionError):
                    data = other
                    if data is None and files.has(cid):
                        data = files.get(cid, 1 << 24)
                    self.send_response(404 if data is None else 200)
                    self.send_header("Content-Length", str(len(data or b"")))
                    self.end_headers()
                    self.wfile.write(data or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/ipfs"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def gateway(stranger: Stranger) -> Iterator[Gateway]:
    made = Gateway(stranger.cas)
    yield made
    made.close()


def test_a_ledger_file_and_a_folder_of_files_make_a_registry(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(4, capsys)
    us = tmp_path / "us"
    assert observe(us, "--ledger", stranger.ledger, "--cas", stranger.cas) == 0
    assert "4 new entries with 9 operations, 0 with a fault; the registry is at entry 4" in capsys.readouterr().out
    assert_same(stranger, us)
    assert run(["did", "resolve", stranger.dids[0], "--data", str(us)]) == 0
    assert json.loads(capsys.readouterr().out)["didDocument"]["id"] == stranger.dids[0]
    assert observe(us, "--ledger", stranger.ledger.as_uri(), "--cas", stranger.cas.as_uri(), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "behind": 0, "chain": True, "entries": 0, "faults": 0, "operations": 0, "position": 4,
        "refusals": {}, "waiting": 0,
    }  # fmt: skip


def test_a_plain_list_says_what_could_not_be_verified(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(3, capsys)
    entries = [json.loads(line) for line in stranger.ledger.read_text("utf-8").splitlines()]
    plain = [{name: entry[name] for name in ("number", "time", "anchor_string")} for entry in entries]
    stranger.ledger.write_text("".join(json.dumps(line) + "\n" for line in plain), "utf-8")
    us = tmp_path / "us"
    assert observe(us, "--ledger", stranger.ledger, "--cas", stranger.cas, "--method", "ion") == 0
    assert "the ledger has no hashes: only changes of entries" in capsys.readouterr().out
    assert run(["did", "resolve", stranger.dids[0].replace("sidetree", "ion"), "--data", str(us)]) == 0
    capsys.readouterr()
    plain[1]["anchor_string"] = plain[0]["anchor_string"]
    stranger.ledger.write_text("".join(json.dumps(line) + "\n" for line in plain), "utf-8")
    assert observe(us, "--ledger", stranger.ledger, "--cas", stranger.cas, "--method", "ion") == 1
    assert re.search("entry 2 of the ledger .* rewritten", capsys.readouterr().err)


def test_a_file_that_is_missing_everywhere_is_named_and_read_again(
    stranger: Stranger, tmp_path: Path, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(3, capsys)
    cid = json.loads(stranger.ledger.read_text("utf-8").splitlines()[1])["anchor_string"].partition(".")[2]
    gateway.before = lambda asked: b"<html>file not found</html>" if asked == cid else None
    us = tmp_path / "us"
    assert observe(us, "--ledger", stranger.ledger, "--cas", gateway.url, "--cas", tmp_path / "empty", "--json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["position"], found["behind"], found["waiting"], found["refusals"]) == (3, 0, 1, {gateway.url: 1})
    assert f"cannot read anchor 2: file {cid} cannot be read from any location" in said.err
    assert "the content does not match the hash of the file" in said.err
    assert run(["anchor", "status", "--data", str(us)]) == 0
    said = capsys.readouterr()
    assert "3 verified, 0 not read yet" in said.out and cid in said.out
    assert observe(us, "--ledger", stranger.ledger, "--cas", gateway.url, "--cas", stranger.cas) == 0
    assert_same(stranger, us)


def test_what_a_stranger_has_written_leads_no_terminal_astray(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = LocalCas(tmp_path / "files").put(gzip.compress(b'{"\\u001b[2J\\u001b]0;owned\\u0007":1}'))
    entry = {"number": 1, "time": 1, "anchor_string": f"1.{bad}"}
    stranger.ledger.write_text(json.dumps(entry) + "\n", "utf-8")
    assert observe(tmp_path / "us", "--ledger", stranger.ledger, "--cas", tmp_path / "files") == 0
    said = capsys.readouterr()
    assert "1 with a fault" in said.out and "unknown members" in said.err
    stranger.ledger.write_text(json.dumps(entry | {"\x1b[2J": 1}) + "\n", "utf-8")
    assert observe(tmp_path / "us", "--ledger", stranger.ledger, "--cas", tmp_path / "files") == 2
    assert "\x1b" not in said.err + capsys.readouterr().err


def test_options_that_do_not_go_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("", "utf-8")
    assert observe(tmp_path, "--cas", "x") == 2
    assert observe(tmp_path, "--ledger", "x") == 2
    assert observe(tmp_path, "--ledger", "ftp://x/y", "--cas", "x") == 2
    assert observe(tmp_path, "--ledger", "x", "--cas", "ftp://x/y") == 2
    assert observe(tmp_path, "--ledger", tmp_path / "nowhere", "--cas", "x") == 1
    assert f"cannot read the ledger {tmp_path / 'nowhere'}: No such file" in capsys.readouterr().err


def test_a_node_that_has_its_own_operations_follows_nobody(
    stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(1, capsys)
    assert observe(stranger.folder, "--ledger", stranger.ledger, "--cas", stranger.cas) == 1
    assert "operations of its own" in capsys.readouterr().err


class Command:
    """The command in a process of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        words = [sys.executable, "-m", "millstream", "anchor", "observe", "--data", str(folder), *map(str, arguments)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.mark.crash
@pytest.mark.smoke
def test_it_may_be_killed_anywhere_and_goes_on_after_the_last_whole_entry(
    stranger: Stranger, tmp_path: Path, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(6, capsys)
    us, arguments = tmp_path / "us", ("--ledger", stranger.ledger, "--cas", gateway.url)
    positions = [0]
    for files in (1, 4, 7, 3, 9):
        reached, let_go = threading.Event(), threading.Event()
        last = gateway.asked + files

        def hold(_cid: str, last: int = last, reached: Any = reached, let_go: Any = let_go) -> None:
            if gateway.asked >= last:
                reached.set()
                let_go.wait(60)

        gateway.before = hold
        with Command(us, *arguments) as command:
            assert reached.wait(60), "the file at which it is killed was never asked for"
            assert command.end(signal.SIGKILL)[0] == -signal.SIGKILL
        let_go.set()
        with open_node(us) as node:
            positions.append(node.registry.instance.history.position()[0])
            assert node.registry.instance.history.counts().keys() == set(range(1, positions[-1] + 1))
    assert positions == sorted(positions) and positions[-1] > positions[1]
    gateway.before = lambda _cid: None
    assert observe(us, *arguments) == 0
    assert_same(stranger, us)


def test_with_follow_it_waits_for_a_file_and_ends_when_it_is_asked(
    stranger: Stranger, tmp_path: Path, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(2, capsys)
    gateway.before = lambda _cid: b"not this"
    us = tmp_path / "us"
    arguments = ("--ledger", stranger.ledger, "--cas", gateway.url, "--follow", "--interval", "20ms", "--json")
    with Command(us, *arguments) as command:
        assert command.process.stderr is not None
        assert "did not return" in command.process.stderr.readline()
        assert "waiting: cannot read anchor 1" in command.process.stderr.readline()
        gateway.before = lambda _cid: None
        until(lambda: position(us) == 2, "two entries")
        stranger.write(2, capsys)
        until(lambda: position(us) == 4, "two more")
        code, out = command.end(signal.SIGTERM)
    assert code == 0
    assert json.loads(out)["entries"] == 4
    assert_same(stranger, us)


def position(folder: Path) -> int:
    with open_node(folder) as node:
        return node.registry.instance.history.position()[0]


SERVED = """
[serve]
registry_http = "127.0.0.1:0"
[registry]
batch_writer_timeout = "50ms"
"""
FOLLOWS = """
[serve]
registry_http = "127.0.0.1:0"
[registry.follow]
ledger = "{url}"
cas = ["{lies}", "{url}"]
interval = "50ms"
"""


def test_a_node_follows_another_one_by_its_settings(tmp_path: Path, gateway: Gateway) -> None:
    theirs, ours = tmp_path / "stranger", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    (theirs / "millstream.toml").write_text(SERVED, "utf-8")
    gateway.before = lambda _cid: b"a lie"
    person = DidOwner("ada")
    did = f"did:sidetree:{person.suffix}"
    with Serving(theirs) as them:
        url = them.ready["registry"]
        (ours / "millstream.toml").write_text(FOLLOWS.format(url=url, lies=gateway.url), "utf-8")
        with Serving(ours) as us:
            post(url, person.create)
            answer = until(lambda: resolved(us.ready["registry"], did), "the identifier")
            until(lambda: resolved(url, did) == answer, "the same answer of the node that is followed")
            post(url, person.update())
            updated = until(lambda: resolved_anew(us.ready["registry"], did, answer), "its update")
            until(lambda: resolved(url, did) == updated, "the same update there")
            operations = f"{us.ready['registry']}/sidetree/v1/operations"
            new = canonical_json(DidOwner("bob").create.request)
            assert refusal(Request(operations, new, JSON)) == (409, "read_only")
            assert refusal(Request(f"{us.ready['registry']}/sidetree/v1/ledger")) == (409, "read_only")
            state = until(lambda: settled(us.ask("identifiers/following")), "an end of what is new")
            assert (state["ledger"], state["position"], state["error"]) == (url, 2, None)
            with urlopen(f"{us.ready['console']}/metrics") as metrics:
                assert "millstream_registry_followed_entry{ledger=" in metrics.read().decode()
            them.process.kill()
            them.process.wait()
            until(lambda: us.ask("identifiers/following")["error"], "an error that is seen")
            assert resolved(us.ready["registry"], did) is not None, "it answers from what it has"
            us.drain()
    assert any(line.startswith("following has ended at entry 2") for line in us.said)
    assert sum("did not return" in line for line in us.said) <= 10, "at most ten lines for one location"


def settled(state: dict[str, Any]) -> dict[str, Any] | None:
    return state if state["position"] == 2 and not state["behind"] and not state["error"] else None


def resolved_anew(url: str, did: str, before: Any) -> Any:
    """What *url* resolves *did* to, once that is another answer than *before*."""
    answer = resolved(url, did)
    return answer if answer != before else None


def refusal(request: Request) -> tuple[int, str]:
    with pytest.raises(HTTPError) as refused, urlopen(request):
        pass
    with contextlib.closing(refused.value) as answer:
        return answer.code, json.load(answer)["code"]


def resolved(url: str, did: str) -> Any:
    try:
        with urlopen(f"{url}/sidetree/v1/identifiers/{did}") as answer:
            return json.load(answer)
    except HTTPError as error:
        error.close()
        return None


def post(url: str, operation: Any) -> None:
    with urlopen(Request(f"{url}/sidetree/v1/operations", canonical_json(operation.request), JSON)):
        pass


def test_a_node_that_cannot_follow_says_so_at_its_start(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(1, capsys)
    settings = FOLLOWS.format(url="http://127.0.0.1:1", lies=tmp_path)
    (stranger.folder / "millstream.toml").write_text(settings, "utf-8")
    assert run(["serve", "--no-broker", "--data", str(stranger.folder)]) == 1
    assert "operations of its own" in capsys.readouterr().err
    (stranger.folder / "millstream.toml").write_text('[registry.follow]\nledger = "x"\n', "utf-8")
    assert run(["anchor", "status", "--data", str(stranger.folder)]) == 2
    assert "ledger requires cas" in capsys.readouterr().err


def test_nothing_is_written_where_ledger_and_files_come_from(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger.write(2, capsys)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in stranger.cas.rglob("*")}
    stranger.cas.chmod(0o555)
    stranger.ledger.chmod(0o444)
    assert observe(tmp_path / "us", "--ledger", stranger.ledger, "--cas", stranger.cas) == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in stranger.cas.rglob("*")} == before
    stranger.cas.chmod(0o755)
