"""``millstream serve``, ``topic`` and ``group`` as a user types them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.cli.messages import _ready_lines
from millstream.messaging.protocol import v2
from millstream.testing.scripted_server import ScriptedServer


def test_topics_are_made_and_listed_without_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path / "node")]
    assert run(["topic", "create", "orders", "--type", "FIFO", "--queues", "8", *data]) == 0
    assert run(["topic", "create", "orders", "--type", "FIFO", "--queues", "8", *data]) == 0
    capsys.readouterr()
    assert run(["topic", "list", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "orders", "type": "FIFO", "queues": 8, "messages": 0, "groups": [], "first": 1, "held": 0,
    }  # fmt: skip
    assert run(["topic", "create", "orders", "--type", "DELAY", *data]) == 2
    assert "with messages of type FIFO" in capsys.readouterr().err
    assert run(["topic", "describe", "absent", *data]) == 3
    assert run(["group", "describe", "absent", *data]) == 3
    assert run(["topic", "delete", "orders", *data]) == 0
    capsys.readouterr()
    assert run(["topic", "list", *data]) == 0
    assert capsys.readouterr().out == ""


def test_serve_says_when_it_is_ready_and_ends_on_a_signal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path / "node")]
    command = [sys.executable, "-m", "millstream", "serve", "--broker", "127.0.0.1:0", *data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[:3] == ["broker", "ready", "on"]
        endpoint = ["--broker", ready[3]]
        assert run(["topic", "create", "t", *endpoint]) == 0
        capsys.readouterr()
        assert run(["send", "t", "one", "two", "--tag", "x", *endpoint]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2
        assert run(["receive", "t", "--group", "g", "--max", "1", *endpoint]) == 0
        assert run(["receive", "t", "--group", "g", "--json", *endpoint]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert (first, json.loads(second)["body"]) == ("one", "two")
        assert run(["receive", "absent", "--group", "g", *endpoint]) == 3
        capsys.readouterr()
        assert run(["group", "reset", "g", "--topic", "t", "--to", "1", *endpoint]) == 0
        assert run(["group", "list", *endpoint]) == 0
        assert "g  t  lag 2, 0 in flight, all done up to 0, 0 consumers" in capsys.readouterr().out
        assert run(["topic", "describe", "t", *endpoint]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "t  NORMAL  4 queues  2 messages  g",
            "messages 1 to 2; 0 held back",
            "g  t  lag 2, 0 in flight, all done up to 0, 0 consumers",
        ]
        assert run(["client", "list", *endpoint]) == 0
        assert run(["client", "stack", "nobody", *endpoint]) == 3
        assert run(["topic", "list", *data]) == 4
        assert "are in use by a running broker: use --broker HOST:PORT" in capsys.readouterr().err
        assert run(["topic", "describe", "absent", *endpoint]) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert run(["group", "describe", "g", *data]) == 0
    assert run(["topic", "list", *endpoint]) == 1
    assert "Check the address, that `millstream serve` runs there" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["127.0.0.1", "host:port", ":1", "127.0.0.1:70000"])
def test_a_place_that_is_none_is_refused(tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--broker", place, "--data", str(tmp_path)]) == 2
    assert "write HOST:PORT" in capsys.readouterr().err


def test_a_message_with_a_damaged_body_is_reported_and_not_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            damaged = server.message("t", b"not zipped", body_encoding=v2.GZIP)
            server.inbox.extend([server.message("t", b"one"), damaged, server.message("t", b"two")])
            command = ["receive", "t", "--group", "g", "--broker", server.place]
            assert await asyncio.to_thread(run, command) == 1
            acknowledged = [each.receipt_handle for call in server.called("AckMessage") for each in call.entries]
            assert acknowledged == ["handle-one", "handle-two"]
            out, err = capsys.readouterr()
            assert out == "one\ntwo\n"
            assert f"message {damaged.system_properties.message_id} has a damaged body: not acknowledged" in err

    asyncio.run(test())


def test_a_line_is_sent_before_the_next_one_comes_and_ctrl_c_ends_the_wait() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            command = [sys.executable, "-m", "millstream", "send", "t", "--broker", server.place]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"one\n\ntwo")
            assert await asyncio.wait_for(process.stdout.readline(), 60)
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(process.communicate(), 60)
            assert (process.returncode, out) == (130, b"")
            assert err.startswith(b"millstream: interrupted: the messages whose ids were printed are stored")
            bodies = [message.body for call in server.called("SendMessage") for message in call.messages]
            assert bodies == [b"one"]

    asyncio.run(test())


def test_the_lines_of_a_file_are_sent(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(30_000)]
    (tmp_path / "lines").write_bytes(b"\n".join([b"", *lines]))

    async def test() -> list[bytes]:
        with (tmp_path / "lines").open("rb") as file:
            return [line async for some in _ready_lines(file.fileno()) for line in some]

    assert asyncio.run(test()) == lines
