"""``millstream did``: a DID's life from the command line, with keys in files."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run


class Shell:
    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What the command prints: its output, or its complaint where *code* is not 0."""
        self._capfd.readouterr()
        assert run(["did", *arguments]) == code
        out, err = self._capfd.readouterr()
        return err if code else out

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return self.path(name)

    def key(self, name: str) -> str:
        self("key", self.path(name))
        return self.path(name)


@pytest.fixture
def did(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capfd)


def service(name: str) -> str:
    return json.dumps(
        {"action": "add-services", "services": [{"id": name, "type": "t", "serviceEndpoint": "https://x"}]}
    )


def services(answer: str) -> list[str]:
    document: dict[str, Any] = json.loads(answer)["didDocument"]
    return [entry["id"] for entry in document.get("service", [])]


def test_a_did_is_created_updated_recovered_and_ended_with_files(did: Shell) -> None:
    update, recovery, later = did.key("update"), did.key("recovery"), did.key("later")
    created = did(
        "create", "--update-key", update, "--recovery-key", recovery, "--patches", did.file("a", service("a"))
    )
    names = json.loads(did("name", did.file("create.json", created)))
    assert services(did("resolve", names["long_form"])) == ["#a"]
    changed = did(
        "update", names["did"], "--key", update, "--next-key", later, "--patches", did.file("b", service("b"))
    )
    again, newer = did.key("again"), did.key("newer")
    recovered = did(
        "recover", names["did"], "--key", recovery, "--next-recovery-key", again, "--next-update-key", newer
    )
    ended = did("deactivate", names["did"], "--key", again)
    requests = [created, changed, recovered, ended]
    answers = [
        did("resolve", names["did"], "--operations", did.file("requests.jsonl", "".join(requests[:steps])))
        for steps in range(1, 5)
    ]
    assert [services(answer) for answer in answers] == [["#a"], ["#a", "#b"], [], []]
    assert json.loads(answers[-1])["didDocumentMetadata"]["deactivated"] is True


def test_a_key_file_is_private_and_never_overwritten(did: Shell) -> None:
    path = Path(did.key("mine"))
    secret = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "never overwritten" in did("key", str(path), code=2)
    assert path.read_text() == secret
    assert json.loads(did("key", did.path("edwards"), "--curve", "Ed25519"))["kty"] == "OKP"


def test_errors_name_the_file_and_the_rule(did: Shell) -> None:
    good, text = did.key("good"), did.file("text", "no key")
    refused = did("create", "--update-key", text, "--recovery-key", good, code=2)
    assert "text contains no private key" in refused and "name a file of `millstream did key`" in refused
    missing = did("create", "--update-key", did.path("absent"), "--recovery-key", good, code=2)
    assert "No such file" in missing
    assert "must differ" in did("create", "--update-key", good, "--recovery-key", good, code=2)
    patches = did.file("patches", "7")
    complaint = did("create", "--update-key", good, "--recovery-key", did.key("r"), "--patches", patches, code=2)
    assert "patches contains no valid patch" in complaint


def test_what_is_not_known_is_said(did: Shell) -> None:
    update, recovery = did.key("update"), did.key("recovery")
    created = did.file("create.json", did("create", "--update-key", update, "--recovery-key", recovery))
    name = json.loads(did("name", created))["did"]
    assert "unknown DID" in did("resolve", name, code=3)
    assert "DIDs of this node begin with" in did("resolve", "did:web:example.org", code=2)
    assert "ops:2: the operation is not JSON" in did("resolve", name, "--operations", did.file("ops", "\n{"), code=2)
    ended = did.file("end.json", did("deactivate", name, "--key", recovery))
    assert "only a create request defines a DID" in did("name", ended, code=2)


def test_a_did_is_not_resolved_without_the_node_that_was_named(did: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(did.folder)
    created = did("create", "--update-key", did.key("update"), "--recovery-key", did.key("recovery"))
    long_form = json.loads(did("name", did.file("create.json", created)))["long_form"]
    did("resolve", long_form)
    assert f"there is no node in {did.path('typo')}; check --data" in did(
        "resolve", long_form, "--data", "typo", code=3
    )
    monkeypatch.setenv("MILLSTREAM_NODE__DATABASE", "postgresql://localhost/node")
    assert f"there is no node in {did.path('millstream-data')}" in did("resolve", long_form, code=3)


def test_operations_are_not_cut_off(did: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    created = did("create", "--update-key", did.key("update"), "--recovery-key", did.key("recovery"))
    name = json.loads(did("name", did.file("create.json", created)))["did"]
    monkeypatch.setattr("millstream.cli.did.MAX_OPERATIONS_BYTES", len(created))
    did("resolve", name, "--operations", did.file("operations", created))
    complaint = did("resolve", name, "--operations", did.file("operations", f"{created}{created}"), code=2)
    assert f"operations is larger than {len(created):,} bytes" in complaint
