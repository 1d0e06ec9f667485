"""A new space at an audited store: people get a mail, and a mail server that is away costs nothing but the mail."""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import load_settings


class MailServer(socketserver.StreamRequestHandler):
    """As much of a mail server as it takes to be sent mails; each is kept."""

    mails: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 mail\r\n")
        for line in iter(self.rfile.readline, b""):
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            if line.upper().startswith(b"QUIT"):
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 fine\r\n")


@pytest.fixture
def server() -> Any:
    """A mail server, and the mails that it got."""
    mails: list[str] = []
    handler = type("Handler", (MailServer,), {"mails": mails})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], mails
        server.shutdown()
        thread.join()


def node_folder(tmp_path: Path, port: int) -> Path:
    folder = tmp_path / "node"
    (folder / "stores" / "one").mkdir(parents=True)
    (folder / "millstream.toml").write_text(
        f'[stores.one]\nurl = "file://{folder}/stores/one"\naudited = true\n'
        f'[mill.alarms]\nmail_to = ["ann@example.org"]\nsmtp_port = {port}\n'
    )
    return folder


def put(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "item").write_bytes(b"body")
    assert run(["store", "put", "one", "fresh", str(tmp_path / "item"), "--create", "--data", str(folder)]) == 0


def test_a_new_space_is_mailed_once(server: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port, mails = server
    folder = node_folder(tmp_path, port)
    put(folder, tmp_path)
    assert run(["mill", "work", "audit", "--drain", "--data", str(folder)]) == 0
    assert run(["mill", "work", "audit", "--drain", "--data", str(folder)]) == 0
    (mail,) = mails
    assert "Subject: Millstream: new space fresh in one" in mail
    assert "made the space 'fresh' in store 'one' of 'local' at 20" in mail
    capfd.readouterr()


def test_without_a_mail_server_the_change_is_processed_and_the_notice_is_dead_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as closed:
        port = closed.server_address[1]
    folder = node_folder(tmp_path, port)
    put(folder, tmp_path)
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings, VirtualClock()) as node:
        tally = node.mill.workers(QueueName.AUDIT).run_until_drained()
        assert (tally.done, tally.failed, tally.dead) == (2, 2, 1)
        (dead,) = node.queues.open("audit").dead()
        assert f"cannot send the notice through the mail server localhost:{port}" in dead.cause
        assert [event.action.value for event in node.mill.audit.log.events()] == ["CREATE_SPACE", "ADD_CONTENT"]
    capfd.readouterr()
