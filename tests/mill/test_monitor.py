"""Queues are watched: people are told, by real receivers, and autoscalers can read the figures."""

from __future__ import annotations

import io
import json
import socketserver
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import DuplicationPlan
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.notices.alarms import QUEUES, Alarm, Alarms
from millstream.mill.notices.receivers import CommandReceiver, MailReceiver, NoticeError, NoticeSender, WebHookReceiver
from millstream.mill.policies.policy import Pair
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.tasks import QueueName
from millstream.mill.workers.monitor import QueueMonitor, serve_metrics
from millstream.queue.protocol import Depth
from millstream.stores import LocalStore

ALARM = Alarm("audit", "dead-letters", "3 tasks of the queue audit are dead", 3)


def depth(*, ready: int = 0, dead: int = 0) -> Depth:
    return Depth(ready=ready, leased=0, delayed=0, dead=dead, exact=True, as_of=0)


def kinds(alarms: Alarms, at: float, **depths: Depth) -> list[tuple[str, str, bool]]:
    return [(alarm.queue, alarm.kind, alarm.over) for alarm in alarms.observe(at, depths)]


def test_an_alarm_is_told_when_it_begins_each_hour_and_when_it_is_over() -> None:
    alarms = Alarms(most=10, longest=3600)
    assert kinds(alarms, 0, a=depth(ready=10), b=depth()) == []
    assert kinds(alarms, 60, a=depth(dead=1), b=depth(ready=11)) == [
        ("a", "dead-letters", False),
        ("b", "too-many", False),
    ]
    assert kinds(alarms, 120, a=depth(dead=2), b=depth()) == [("b", "too-many", True)]
    assert kinds(alarms, 3659, a=depth(dead=2), b=depth()) == []
    assert kinds(alarms, 3660, a=depth(dead=2), b=depth()) == [("a", "dead-letters", False)]
    assert kinds(alarms, 3720, a=depth(), b=depth()) == [("a", "dead-letters", True)]
    assert kinds(alarms, 3780, a=depth(), b=depth()) == []


def test_a_task_that_nobody_works_on_is_an_alarm(world: Any) -> None:
    queue, alarms = world.queue("audit"), Alarms(most=10, longest=3600)
    queue.put([b"task"])
    world.clock.advance(3600)
    assert kinds(alarms, 0, audit=queue.depth()) == []
    world.clock.advance(1)
    assert kinds(alarms, 60, audit=queue.depth()) == [("audit", "too-old", False)]
    queue.lease(1, visibility=60)
    assert kinds(alarms, 120, audit=queue.depth()) == [("audit", "too-old", True)]


def test_held_plans_are_an_alarm_until_somebody_approves(world: Any) -> None:
    told: list[Alarm] = []

    class Receiver:
        def tell(self, alarm: Alarm) -> None:
            told.append(alarm)

    change_guard = ChangeGuard(world.engine, world.clock, world.manifest.count)
    monitor = QueueMonitor(
        {}, world.clock, Alarms(most=10, longest=3600), [Receiver()], held=lambda: len(change_guard.pending())
    )
    monitor.look()
    change_guard.check(DuplicationPlan(Pair("1", "2"), "s", deletes=500, copied=1000))
    for _ in range(2):
        monitor.look()
    change_guard.approve()
    monitor.look()
    assert [(alarm.subject, alarm.count) for alarm in told] == [
        ("held in the change guard", 1),
        ("held in the change guard (over)", 0),
    ]
    assert "1 plans of duplication go too far and are held: see `millstream mill approve`" in told[0].message


def test_what_cannot_be_read_is_an_alarm_and_hides_no_other(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An outage of the database is what people have to be told of: nothing may depend on it."""
    queue, told, is_down = world.queue("audit"), list[Alarm](), [True]
    queue.put([b"1"])
    queue.dead_letter(queue.lease(1, visibility=10)[0], cause="so")

    def failing(answer: Any) -> Any:
        def read() -> Any:
            if is_down[0]:
                raise OSError("the database is gone\nSELECT")
            return answer

        return read

    class Receiver:
        def tell(self, alarm: Any) -> None:
            told.append(alarm)

    queues: Any = {"repair": SimpleNamespace(depth=failing(depth())), "audit": queue}
    queues["bit-error"] = queues["repair"]
    monitor = QueueMonitor(
        queues, world.clock, Alarms(most=10, longest=3600), [Receiver()], held=failing(0), others=failing([])
    )
    assert monitor.look().depths.keys() == {"audit"}
    assert [alarm.subject for alarm in told] == ["dead-letters in audit"], "what is a matter of a moment is not told"
    monitor.look()
    outage = ["unknown in the work queues", "unknown in the change guard", "unknown in the node"]
    assert [alarm.subject for alarm in told[1:]] == outage
    (about,) = [alarm for alarm in told if alarm.queue == QUEUES]
    assert about.message.startswith(
        "1 other queue and the queue repair cannot be read: OSError: the database is gone: "
    )
    assert about.count == 2 and about.message in caplog.messages
    is_down[0] = False
    monitor.look()
    assert [alarm.subject for alarm in told[4:]] == [f"{subject} (over)" for subject in outage]
    assert told[4].message == "the state of the work queues is known again"


def test_alarms_of_a_queue_that_cannot_be_read_are_not_over() -> None:
    alarms = Alarms(most=10, longest=3600)
    assert kinds(alarms, 0, a=depth(dead=1)) == [("a", "dead-letters", False)]
    assert kinds(alarms, 60) == [] and not alarms.observe(120, {}, None)
    assert kinds(alarms, 180, a=depth()) == [("a", "dead-letters", True)]


def test_a_depth_that_goes_up_and_down_around_its_limit_is_one_alarm() -> None:
    alarms = Alarms(most=10, longest=3600, quiet_looks=2)
    ready = [11, 10, 11, 10, 11, 10, 10, 10]
    found = [kinds(alarms, 60 * minute, a=depth(ready=count)) for minute, count in enumerate(ready)]
    assert found == [[("a", "too-many", False)], [], [], [], [], [], [("a", "too-many", True)], []]


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if self.path == "/tls":  # so answers a port that expects TLS
                self.wfile.write(b"\x15\x03\x01\x00\x02\x02\x16\r\n")
                return
            code = self.path[1:4]
            status = int(code) if code.isdigit() else 204
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/login")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_web_hook_gets_the_alarm_as_json(hook: tuple[str, list[Any]]) -> None:
    url, got = hook
    WebHookReceiver(f"{url}/secret").tell(ALARM)
    assert got == [{"queue": "audit", "kind": "dead-letters", "count": 3, "over": False, "message": ALARM.message}]
    with pytest.raises(NoticeError) as caught:
        WebHookReceiver(f"{url}/500?token").tell(ALARM)
    assert "token" not in str(caught.value) and "127.0.0.1 did not accept the notice: 500" in str(caught.value)
    with pytest.raises(
        NoticeError, match=r"URL in mill\.alarms\.webhook: write a URL that begins with http:// or https://"
    ):
        WebHookReceiver("file:///etc/passwd")
    with pytest.raises(NoticeError, match="invalid webhook URL in --alarm"):
        WebHookReceiver("file:///etc/passwd", "--alarm")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_web_hook_that_redirects_has_not_got_the_alarm(hook: tuple[str, list[Any]], code: int) -> None:
    with pytest.raises(NoticeError, match=rf"redirects .*: {code} .*; write the URL .* in mill\.alarms\.webhook"):
        WebHookReceiver(f"{hook[0]}/{code}").tell(ALARM)


def test_a_web_hook_that_does_not_speak_http_or_has_an_odd_url_is_an_error_of_the_receiver(
    hook: tuple[str, list[Any]],
) -> None:
    with pytest.raises(NoticeError, match=r"cannot be posted to the webhook at 127\.0\.0\.1: BadStatusLine; check"):
        WebHookReceiver(f"{hook[0]}/tls").tell(ALARM)
    for path in ("sécret", "se cret", "secret\n"):
        with pytest.raises(NoticeError) as caught:
            WebHookReceiver(f"http://127.0.0.1:9/{path}").tell(ALARM)
        assert "cret" not in str(caught.value)
    with pytest.raises(NoticeError, match="cannot be posted"):
        WebHookReceiver("http://host:port/").tell(ALARM)
    with pytest.raises(NoticeError, match="invalid webhook URL"):
        WebHookReceiver("http://[::1")


def test_a_command_gets_the_alarm_on_its_input(tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    CommandReceiver([sys.executable, "-c", code]).tell(ALARM)
    assert json.loads((tmp_path / "got").read_text())["count"] == 3
    with pytest.raises(NoticeError, match=r"exited with code 3: so; run it by hand .* or mill\.alarms\.command"):
        CommandReceiver([sys.executable, "-c", "import sys; print('so', file=sys.stderr); sys.exit(3)"]).tell(ALARM)
    with pytest.raises(NoticeError, match=r"cannot run the alarm command .*; correct mill\.alarms\.command"):
        CommandReceiver([str(tmp_path / "none")]).tell(ALARM)


class _MailSink(socketserver.StreamRequestHandler):
    """As much of a mail server as it takes to be sent one mail."""

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                self.server.got.append(b"".join(lines).decode())  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
            if word == b"QUIT":
                return


def test_mail_is_sent() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _MailSink) as server:
        server.got = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        MailReceiver("127.0.0.1", server.server_address[1], "mill@example.org", ["ann@example.org"]).tell(ALARM)
        thread.join()
        (text,) = server.got  # type: ignore[attr-defined]
        port = server.server_address[1]
    assert "Subject: Millstream: dead-letters in audit" in text and "To: ann@example.org" in text
    assert ALARM.message in text
    with pytest.raises(
        NoticeError, match=rf"cannot send .* mail server 127\.0\.0\.1:{port}: .*; check mill\.alarms\.smtp_host"
    ):
        MailReceiver("127.0.0.1", port, "mill@example.org", ["ann@example.org"]).tell(ALARM)


class _RefusingMailServer(socketserver.StreamRequestHandler):
    """A mail server that knows none of its recipients."""

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            answers = {b"RCPT": b"550 no such user\r\n", b"QUIT": b"221 bye\r\n"}
            self.wfile.write(answers.get(line[:4].upper(), b"250 fine\r\n"))


def test_a_mail_that_the_server_refuses_is_told_apart_from_a_server_that_is_not_there() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _RefusingMailServer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(NoticeError, match=r"did not accept the notice: ann@example\.org: 550 no such user; check"):
            MailReceiver("127.0.0.1", server.server_address[1], "mill@example.org", ["ann@example.org"]).tell(ALARM)
        thread.join()


def test_the_figures_are_served_as_json_and_to_prometheus(world: Any) -> None:
    queue = world.queue("audit")
    queue.put([b"1", b"2"])
    (lease,) = queue.lease(1, visibility=10)
    queue.dead_letter(lease, cause="so")
    told: list[Alarm] = []

    class Receiver:
        def tell(self, alarm: Alarm) -> None:
            told.append(alarm)
            raise NoticeError("not at home")

    monitor = QueueMonitor({"audit": queue}, world.clock, Alarms(most=10, longest=3600), [Receiver()])
    monitor.look()
    assert [(alarm.kind, alarm.count) for alarm in told] == [("dead-letters", 1)]
    queue.put([b"%d" % number for number in range(2_500)])
    with serve_metrics(monitor.count, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{base}/workers") as answer:
            figures = json.load(answer)
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        server.shutdown()
        thread.join()
    assert (figures["desired"], figures["untold"]) == ({"audit": 3}, 1)  # counted at the request, not at the last look
    assert 'millstream_queue_tasks{queue="audit",state="dead"} 1' in lines
    assert 'millstream_desired_workers{queue="audit"} 3' in lines


def test_an_alarm_that_does_not_arrive_is_logged_and_told_again_with_each_look(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = world.queue("audit")
    queue.put([b"1", b"2"])
    queue.dead_letter(queue.lease(1, visibility=10)[0], cause="so")
    told: list[tuple[str, Alarm]] = []

    class Receiver:
        def __init__(self, name: str, away: int) -> None:
            self.name, self.away = name, away

        def tell(self, alarm: Any) -> None:
            self.away -= 1
            if self.away >= 0:
                raise NoticeError("not at home")
            told.append((self.name, alarm))

    receivers = [Receiver("here", 0), Receiver("away", 2)]
    monitor = QueueMonitor({"audit": queue}, world.clock, Alarms(most=10, longest=3600), receivers)
    for minute in range(4):
        monitor.look()
        assert [name for name, _ in told] == (["here"] if minute < 2 else ["here", "away"])
        world.clock.advance(60)
    assert told[0][1] == told[1][1] and monitor.figures.untold == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the alarm dead-letters in audit was not delivered; retrying every 60 s: not at home"
    ]


def test_a_receiver_with_an_unexpected_error_keeps_no_alarm_from_others(world: Any) -> None:
    queue, told, is_broken = world.queue("audit"), list[str](), [True]
    queue.put([b"1"])
    queue.dead_letter(queue.lease(1, visibility=10)[0], cause="so")

    class Receiver:
        def __init__(self, name: str) -> None:
            self.name = name

        def tell(self, alarm: Any) -> None:
            if self.name == "broken" and is_broken[0]:
                raise RuntimeError("the token")
            told.append(f"{self.name}: {alarm.kind}")

    receivers = [Receiver("broken"), Receiver("well")]
    monitor = QueueMonitor({"audit": queue}, world.clock, Alarms(most=10, longest=3600), receivers)
    assert monitor.look().untold == 1 and told == ["well: dead-letters"]
    assert [one.why for one in monitor.undelivered] == ["unexpected RuntimeError"]
    is_broken[0] = False
    monitor.look()
    assert told == ["well: dead-letters", "broken: dead-letters"] and not monitor.undelivered


def test_a_monitor_that_is_stopped_waits_once_for_a_receiver_that_does_not_answer(world: Any) -> None:
    tried = list[str]()

    class Receiver:
        def __init__(self, name: str) -> None:
            self.name = name

        def tell(self, alarm: Any) -> None:
            tried.append(f"{self.name} {alarm.queue}")
            monitor.stop()
            if self.name == "away" and alarm.queue != "a":
                raise NoticeError("no answer within 30 s")

    alarms = [Alarm(name, "store-unreachable", "away", 1) for name in "abcd"]
    receivers = [Receiver("away"), Receiver("here")]
    monitor = QueueMonitor({}, world.clock, Alarms(most=10, longest=3600), receivers, others=lambda: alarms)
    monitor.run()
    assert tried == ["away a", "away b", "here a", "here b", "here c", "here d"]


def test_a_notice_reaches_every_receiver_once_although_one_fails_at_first() -> None:
    told, is_away = list[str](), [True]

    class Receiver:
        def __init__(self, name: str) -> None:
            self.name = name

        def tell(self, notice: Any) -> None:
            if self.name == "away" and is_away[0]:
                raise NoticeError("not at home")
            told.append(f"{self.name}: {notice.subject}")

    sender = NoticeSender([Receiver("away"), Receiver("here")])
    for attempt in (1, 2):
        with pytest.raises(NoticeError, match="not at home"):
            sender.tell(ALARM, attempt)
        assert told == ["here: dead-letters in audit"]
    with pytest.raises(NoticeError, match="not at home"):
        sender.tell(ALARM, 1)
    assert told == ["here: dead-letters in audit"] * 2, "as another notice: the one before became a dead letter"
    is_away[0] = False
    assert sender.tell(ALARM, 2) == 2 and told[2:] == ["away: dead-letters in audit"]
    sender.tell(ALARM, 1)
    assert len(told) == 5, "as another notice"


def test_whom_notices_reached_is_not_kept_of_all_that_became_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    class Receiver:
        def __init__(self, name: str) -> None:
            self.name = name

        def tell(self, notice: Any) -> None:
            if self.name == "away":
                raise NoticeError("not at home")
            told.append(notice.queue)

    monkeypatch.setattr("millstream.mill.notices.receivers.MOST_REACHED", 2)
    sender = NoticeSender([Receiver("away"), Receiver("here")])
    for attempt in (1, 2):
        for queue in "abc":
            with pytest.raises(NoticeError):
                sender.tell(Alarm(queue, "dead-letters", "text", 1), attempt)
    assert told[:4] == ["a", "b", "c", "a"]


def test_workers_tell_of_dead_letters_as_the_settings_say(tmp_path: Path, hook: tuple[str, list[Any]]) -> None:
    from millstream.node import Node
    from millstream.settings import load_settings

    url, got = hook
    (tmp_path / "millstream.toml").write_text(f'[mill.alarms]\nwebhook = "{url}"\n')
    settings, _ = load_settings({"data": str(tmp_path)})
    with Node.open(settings, create=True) as node:
        queue = node.queues.open("repair")
        queue.put([b"1"])
        queue.dead_letter(queue.lease(1, visibility=60)[0], cause="so")
    assert run(["mill", "work", "--drain", "--monitor", "0", "--data", str(tmp_path)]) == 0
    assert [(alarm["queue"], alarm["kind"]) for alarm in got] == [("repair", "dead-letters")]


def test_people_are_told_of_a_report_that_does_not_say_success(tmp_path: Path, hook: tuple[str, list[Any]]) -> None:
    from millstream.mill.item_ref import ItemRef
    from millstream.node import Node
    from millstream.settings import load_settings
    from millstream.testing.damage import flip_bit

    url, got = hook
    (tmp_path / "millstream.toml").write_text(
        f'[mill.alarms]\nwebhook = "{url}"\n[stores.one]\nurl = "file://{{data}}/one"\n'
    )
    settings, _ = load_settings({"data": str(tmp_path)})
    with Node.open(settings, create=True) as node:
        store = node.stores.providers["one"]
        for space in ("good", "bad"):
            store.create_space(space)
            store.put(space, "a", io.BytesIO(b"body"))
            record_space(node.stores.providers, node.stores.manifest, "one", space)
        flip_bit(LocalStore(tmp_path / "one").path_of("bad", "a"))
        assert node.stores.providers.find(ItemRef("one", "bad", "a")) is not None
        node.mill.producers.bits(SpaceFilter()).run()
        node.mill.workers(QueueName.BIT_INTEGRITY).run_until_drained()
        node.mill.producers.bits(SpaceFilter()).run()
        assert node.mill.workers(QueueName.BIT_REPORT).run_until_drained().dead == 0
    (told,) = got
    assert (told["kind"], told["store"], told["space"], told["result"]) == ("report", "one", "bad", "FAILURE")
    assert told["message"].startswith("one/bad: FAILURE: 1 listed, 1 checked, 0 explained, 1 failed")
    assert "\n  a: B" in told["message"]
