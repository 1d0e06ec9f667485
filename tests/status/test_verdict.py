"""The verdict on a node: each fault of the table in the documentation shows in time, in its words, and goes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec
import pytest
from faulty_node import FAULTS, FaultyNode, join, make_node
from in_process import AskedInProcess

from millstream.batching.batch_log_origin import BatchLogOrigin, write_origin
from millstream.cli.main import millstream as commands
from millstream.cli.main import run
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore
from millstream.mill.manifest import ManifestEvent
from millstream.mill.manifest_table import manifest_table
from millstream.mill.notices.alarms import Alarm, Alarms
from millstream.mill.notices.receivers import CommandReceiver
from millstream.mill.workers.monitor import QueueMonitor
from millstream.status import poller as status_poller
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.serving_node import announced
from millstream.status.verdict.alarms import verdict_alarms
from millstream.status.verdict.clock_watch import ClockWatch
from millstream.status.verdict.judge import judge
from millstream.status.verdict.kinds import KINDS
from millstream.status.verdict.models import Verdict
from millstream.status.verdict.process import ProcessState
from millstream.testing.waiting import until
from support.cutting_proxy import CuttingProxy
from support.server_databases import new_database

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "verdict.md"


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below *heading* of the page, without its head."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"## {heading}\n")
    lines = [line for line in re.split("\n###? ", rest)[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


TABLE = {row[0]: row[1:] for row in rows("Faults and detection times")}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_node(tmp_path_factory.mktemp("verdict") / "node")


@pytest.fixture
def desk(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNode]:
    found = FaultyNode(Path(shutil.copytree(furnished, tmp_path / "node")), monkeypatch)
    yield found
    found.node.close()


def test_the_page_lists_every_fault_and_every_kind_of_issue() -> None:
    assert list(TABLE) == list(FAULTS)
    documented = {name.strip("`"): [severity, meaning] for name, severity, _, meaning in rows("Kinds of issues")}
    assert documented == {name: [kind.severity, kind.meaning] for name, kind in KINDS.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_in_time_and_in_its_words_and_goes_when_it_is_mended(desk: FaultyNode, fault: str) -> None:
    before = desk.poller.verdict()
    assert before.ok, before
    _, kind, words, seconds = TABLE[fault]

    def shows(verdict: Verdict) -> bool:
        unknown = [("unknown", one.what) for one in verdict.unknown]
        found = [(one.kind, one.what) for one in verdict.issues] + unknown
        return not verdict.ok and any(name == kind.strip("`") and re.search(words, what) for name, what in found)

    with FAULTS[fault](desk):
        assert desk.seconds_until(shows) <= int(seconds) <= 60
    desk.seconds_until(lambda verdict: not shows(verdict))


def test_what_is_mounted_is_judged_by_itself(desk: FaultyNode) -> None:
    """In a mount namespace: nothing is mounted at one store, and the other has a disk that is full and read-only."""
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*private, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system allows no mount namespaces to this user")
    one, two, aside = desk.folder / "stores" / "one", desk.two, desk.folder / "aside"
    commands = [
        f"cp -a {two} {aside}",
        f"mount -t tmpfs -o size=1m none {two}",
        f"cp -a {aside}/. {two}",
        f"mount -o remount,ro {two}",
        f"mount -t tmpfs -o size=4g none {one}",
        f"exec {sys.executable} -m millstream status --json --data {desk.folder}",
    ]
    done = subprocess.run([*private, "sh", "-c", " && ".join(commands)], check=False, capture_output=True)
    assert done.returncode == 1, done.stderr
    issues = json.loads(done.stdout.splitlines()[-1])["issues"]
    found = {(issue["kind"], issue["subject"]) for issue in issues}
    assert found == {("store-not-mounted", "one"), ("store-read-only", "two"), ("store-full", "two")}


def test_an_hour_without_a_fault_shows_none(desk: FaultyNode) -> None:
    for _ in range(12):
        desk.clock.advance(300)
        found = desk.poller.verdict()
        assert found.ok, found


def test_a_clock_that_was_set_is_taken_to_be_right_after_an_hour_and_small_steps_at_once() -> None:
    clock = VirtualClock()
    watch = ClockWatch(clock, 60 * MICROSECONDS)
    clock.jump(50)
    assert watch.look() is None
    clock.jump(-50)
    assert watch.look() is None
    clock.jump(-3600)
    step = watch.look()
    assert step is not None and step.amount == -3600 * MICROSECONDS
    clock.advance(3599)
    assert watch.look() == step
    clock.advance(2)
    assert watch.look() is None
    clock.jump(7200)
    assert watch.look() is not None
    clock.jump(-7200)
    assert watch.look() is None


def test_an_alarm_that_is_not_delivered_is_told_elsewhere_without_what_may_be_secret(desk: FaultyNode) -> None:
    got = desk.folder / "got"
    receivers = [
        CommandReceiver(["sh", "-c", "echo the token >&2; exit 3"]),
        CommandReceiver(["sh", "-c", f"cat >> {got}"]),
    ]
    told = list[Alarm]()
    monitor = QueueMonitor({}, desk.clock, Alarms(most=10, longest=3600), receivers, others=lambda: told)
    with FAULTS["dead letters"](desk):
        for _ in range(3):
            desk.poller.verdict()
            known = msgspec.structs.replace(desk.poller.facts(), process=ProcessState(undelivered=monitor.undelivered))
            told[:] = verdict_alarms(judge(known), ())
            monitor.look()
        assert {one.kind for one in told} == {"dead-letters", "alarm-undelivered"}
        (alarm,) = [one for one in told if one.kind == "alarm-undelivered"]
    assert alarm.message.startswith("1 alarm was not delivered: the alarm command sh exited with code 3: ")
    assert got.read_text().count('"kind":"alarm-undelivered"') == 1 and "token" not in got.read_text()


def test_what_to_do_names_commands_that_exist() -> None:
    words = [text.split() for kind in KINDS.values() for text in re.findall("`millstream ([^`{]*)", kind.todo)]
    assert len(words) > 10
    for command in words:
        found: Any = commands
        for word in command:
            if not isinstance(found, click.Group):
                break
            found = found.get_command(click.Context(found), word)
            assert found is not None, command


def test_figures_that_are_not_updated_any_more_are_unknown(desk: FaultyNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk does not answer")

    def unknown() -> dict[str, str]:
        desk.clock.advance(1)
        return {one.subject: one.what for one in desk.poller.verdict().unknown}

    desk.poller.start()
    try:
        assert unknown() == {}
        monkeypatch.setattr(status_poller, "take_snapshot", broken)
        desk.clock.advance(60)
        until(lambda: "the disk does not answer" in unknown().get("totals", ""))
        monkeypatch.undo()
        until(lambda: not unknown())
    finally:
        desk.poller.stop()
    assert desk.poller.verdict().ok


def test_copies_that_are_newer_than_the_last_check_are_no_issue_and_copies_that_it_left_out_are(
    desk: FaultyNode,
) -> None:
    desk.node.stores.providers["one"].put("photos", "new", io.BytesIO(b"new"))
    desk.command("mill", "duplicate")
    desk.clock.advance(60)
    rows = {row.store: (row.items, row.checked) for row in desk.poller.look().spaces if row.space == "photos"}
    assert rows == {"one": (4, 3), "two": (4, 3)} and desk.poller.verdict().ok
    never = manifest_table.update().where(manifest_table.c.content_id == "a", manifest_table.c.store == "two")
    with desk.node.databases.own.begin() as connection:
        connection.execute(never.values(outcome=None, checked_at=None, verified_at=None))
    desk.clock.advance(60)
    assert [(one.kind, one.count) for one in desk.poller.verdict().issues] == [("unchecked", 2)]
    desk.command("mill", "check")
    desk.clock.advance(60)
    assert desk.poller.verdict().ok


@pytest.mark.parametrize("has_newer_copy", [False, True])
def test_a_report_that_cannot_be_read_is_an_issue_and_nothing_is_concluded_from_it(
    desk: FaultyNode, has_newer_copy: bool
) -> None:
    if has_newer_copy:
        desk.node.stores.providers["one"].put("photos", "new", io.BytesIO(b"new"))
        desk.command("mill", "duplicate")
    (path,) = (desk.folder / "reports" / "two" / "photos").glob("*.json")
    before = path.read_bytes()
    path.write_bytes(b"{")
    (issue,) = desk.poller.verdict().issues
    assert issue.kind == "trouble" and issue.what.startswith("the report on photos in two cannot be read: ")
    path.write_bytes(before)
    desk.clock.advance(60)
    assert desk.poller.verdict().ok


def test_an_item_without_a_copy_is_an_issue_after_an_hour(desk: FaultyNode) -> None:
    """Also where the report on the copy has missed it, which says INCOMPLETE until the next check."""
    desk.node.stores.providers["one"].put("photos", "new", io.BytesIO(b"new"))
    event = ManifestEvent("one", "photos", "new", desk.clock.now(), hashlib.sha256(b"new").hexdigest(), 3)
    desk.node.stores.manifest.writer.record([event])
    desk.command("mill", "check")
    report = desk.node.mill.reports.archive.latest("two", "photos")
    assert report is not None and (report.result, report.absent.count) == ("INCOMPLETE", 1)
    for minutes, kinds in ((1, []), (58, []), (2, ["space-not-well"])):
        desk.clock.advance(minutes * 60)
        assert [one.kind for one in desk.poller.verdict().issues] == kinds
    assert "photos from one: 1 not copied to two" in desk.poller.verdict().issues[0].what


def test_messages_that_a_job_over_history_took_are_not_left_behind(desk: FaultyNode) -> None:
    log = desk.node.logs.store.log(LogSpec("readings"))
    with log.writer() as writer:
        writer.append([Message(b"{}", key="k", source="s") for _ in range(3)])
    output = desk.node.logs.store.log(LogSpec("readings.batches", kind="batches"))
    desk.clock.advance(2 * 3600)
    assert [(one.kind, one.count) for one in desk.poller.verdict().issues] == [("not-batched", 3)]
    write_origin(output, BatchLogOrigin("readings", 3, desk.clock.now()))
    assert desk.poller.verdict().ok


def test_a_look_that_had_to_wait_does_not_delay_the_next(desk: FaultyNode, monkeypatch: pytest.MonkeyPatch) -> None:
    real = status_poller.take_snapshot

    def slow(*arguments: Any) -> Any:
        desk.clock.advance(600)  # a server was away
        return real(*arguments)

    monkeypatch.setattr(status_poller, "take_snapshot", slow)
    look, pause = desk.poller.looks[status_poller.TOTALS]
    desk.poller._attempt(status_poller.TOTALS, look)
    assert pause() == status_poller.SNAPSHOT_SECONDS


def test_looks_at_a_database_server_pause_by_the_time_that_it_takes_and_by_the_number_of_members(
    desk: FaultyNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processor does the work, and every member looks. A look that had to wait once does not delay the next."""
    real, seconds, troubles = status_poller.take_snapshot, list[int](), dict[str, str]()

    def slow(*arguments: Any) -> Any:
        desk.clock.advance(seconds[-1])
        return msgspec.structs.replace(real(*arguments), troubles=troubles)

    def pause_after(*took: int) -> float:
        for each in took:
            seconds.append(each)
            desk.poller._attempt(status_poller.TOTALS, look)
        return pause()

    monkeypatch.setattr(status_poller, "take_snapshot", slow)
    look, pause = desk.poller.looks[status_poller.TOTALS]
    assert pause_after(3, 3) == status_poller.SNAPSHOT_SECONDS
    monkeypatch.setattr(desk.poller, "_is_on_server", True)
    assert pause_after(3, 3) == 3 * status_poller.SERVER_SHARE
    assert pause_after(600) == 3 * status_poller.SERVER_SHARE
    join(desk)
    join(desk)
    assert pause_after(3, 3) == 2 * 3 * status_poller.SERVER_SHARE
    assert pause_after(60, 60) == status_poller.LONGEST_SERVER_PAUSE, "old facts are not shown as known for long"
    troubles["members"] = "its server does not answer"
    assert pause_after(3, 3) == status_poller.SNAPSHOT_SECONDS


def test_logs_in_a_bucket_are_looked_at_once_a_minute(desk: FaultyNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes requests for each log, which cost money."""
    monkeypatch.setattr(LogStore, "url", "s3://bucket/logs")
    pauses = {name: pause() for name, (_, pause) in StatusPoller(NodeView(desk.node)).looks.items()}
    assert pauses[status_poller.COUNTERS] == pauses[status_poller.TOTALS] == status_poller.PAID_SECONDS
    assert pauses[status_poller.COPIES] == status_poller.SNAPSHOT_SECONDS


def test_a_server_that_is_away_is_named(desk: FaultyNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = desk.node.settings
        desk.node.settings = msgspec.structs.replace(
            settings,
            log=msgspec.structs.replace(settings.log, store=f"mysql://root@{place}/logs"),
            queue=msgspec.structs.replace(settings.queue, broker=f"amqp://guest@{place}"),
            registry=msgspec.structs.replace(settings.registry, database=f"mysql://root@{place}/did"),
            node=msgspec.structs.replace(settings.node, database=f"postgresql://root@{place}/node"),
        )
        desk.poller.look_at_process()
        issues = {(one.kind, one.what) for one in desk.poller.judge_known().issues}
    assert issues == {
        ("database", f"the database of logs cannot be reached: {place}: Connection refused"),
        ("database", f"the database of the node's tables cannot be reached: {place}: Connection refused"),
        ("database", f"the database of the registry cannot be reached: {place}: Connection refused"),
        ("queue-broker", f"the broker of queues cannot be reached: {place}: Connection refused"),
    }


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_node_whose_tables_are_on_a_stopped_server_says_so_until_it_is_back(
    desk: FaultyNode, request: pytest.FixtureRequest, server: str
) -> None:
    with new_database(str(request.getfixturevalue(server)), "verdict") as url:
        place = urlsplit(url)
        host, port = place.hostname or "", place.port or 0
        with CuttingProxy(host, port) as line:
            desk.reopen(f'[node]\ndatabase = "{url.replace(f":{port}/", f":{line.port}/")}"\n')
            desk.seconds_until(lambda verdict: not _is_away(verdict))
        assert desk.seconds_until(_is_away, may_fail=True) <= 60
        assert desk.poller.judge_known().unknown  # and not given as of before, or as nothing
        with CuttingProxy(host, port, own_port=line.port):
            assert desk.seconds_until(lambda verdict: not _is_away(verdict), may_fail=True) <= 60
            desk.node.close()


def _is_away(verdict: Verdict) -> bool:
    return any(one.kind == "database" and one.subject == "node.database" for one in verdict.issues)


def test_status_asks_the_node_that_serves_the_folder(
    desk: FaultyNode, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It says what the console says, and says so where nobody watches or where the node does not answer."""

    def status() -> tuple[int, dict[str, Any]]:
        capsysbinary.readouterr()
        code = run(["status", "--json", "--data", str(desk.folder)])
        return code, json.loads(capsysbinary.readouterr().out.splitlines()[-1])

    code, found = status()
    assert (code, found["ok"], found["issues"], found["unknown"], found["watching"]) == (0, True, [], [], False)
    assert found["well"] and found["copies"]
    run(["status", "--data", str(desk.folder)])
    assert b"not monitored" in capsysbinary.readouterr().out
    with FAULTS["dead letters"](desk):
        code, found = status()
        assert (code, found["ok"], [one["kind"] for one in found["issues"]]) == (1, False, ["dead-letters"])
        assert found["issues"][0]["todo"] and found["issues"][0]["meaning"] and found["issues"][0]["since"]
    with announced(desk.folder, "127.0.0.1", 9):
        code, found = status()
        assert (code, found["ok"], found["watching"]) == (1, False, True)
        assert "does not report its status" in found["unknown"][0]["what"]


def test_status_shows_the_verdict_where_policies_or_logs_cannot_be_read(
    desk: FaultyNode, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def status() -> tuple[int, dict[str, Any]]:
        capsysbinary.readouterr()
        code = run(["status", "--json", "--data", str(desk.folder)])
        return code, json.loads(capsysbinary.readouterr().out.splitlines()[-1])

    with FAULTS["a policy that cannot be read"](desk):
        code, found = status()
        assert (code, [one["kind"] for one in found["issues"]]) == (1, ["trouble"])
    text = (desk.folder / "millstream.toml").read_text()
    (desk.folder / "millstream.toml").write_text(f'{text}\n[mill]\npolicies = "/proc/nowhere"\n')
    code, found = status()
    (issue,) = found["issues"]
    assert (code, issue["kind"]) == (1, "trouble") and "mount the disk with the policies" in issue["what"]
    (desk.folder / "millstream.toml").write_text(text)
    with (desk.folder / "millstream.toml").open("a") as settings:
        settings.write('[log]\nstore = "sqlite:////proc/nowhere/log.db"\n')
    code, found = status()
    (unknown,) = found["unknown"]
    assert (code, found["issues"]) == (1, []) and "the node cannot be opened: " in unknown["what"]


def test_overview_metrics_and_alarms_say_the_same(desk: FaultyNode) -> None:
    asked = AskedInProcess(desk.node)
    queue = "duplication-low"
    with FAULTS["dead letters"](desk), FAULTS["a store moved away"](desk):
        kinds = [one["kind"] for one in asked.api("/overview/verdict")["issues"]]
        assert kinds == ["store-unreachable", "dead-letters"]
        page = asked.page("/")
        assert page.index("The store two cannot be used") < page.index('class="steps"')
        assert f'action="/queues/{queue}/redrive"' in page and "No problem is known" not in page
        assert "up to date" not in page and "no fault at the last check" not in page
        metrics = asked.ask("GET", "/metrics")[1].splitlines()
        assert 'millstream_verdict_issues{kind="store-unreachable"} 1' in metrics
        assert 'millstream_verdict_issues{kind="dead-letters"} 1' in metrics
        assert 'millstream_verdict_issues{kind="disk"} 0' in metrics and "millstream_verdict_unknown 0" in metrics
        verdict = desk.poller.verdict()
        assert [(one.queue, one.kind) for one in verdict_alarms(verdict, set())] == [
            ("two", "store-unreachable"),
            (queue, "dead-letters"),
        ]
        assert [one.kind for one in verdict_alarms(verdict, {queue})] == ["store-unreachable"]
        assert asked.ask("GET", "/readyz")[0] == 200


def test_alarms_of_the_verdict_are_told_and_are_over_only_when_that_is_known() -> None:
    alarms, away = Alarms(most=10, longest=3600), Alarm("two", "store-unreachable", "away", 3)
    assert alarms.observe(0, {}, 0, [away]) == [away]
    assert alarms.observe(60, {}, 0, [away]) == [] and alarms.observe(120, {}, 0, None) == []
    (over,) = alarms.observe(180, {}, 0, [])
    assert (over.queue, over.over, over.message) == ("two", True, "two is in order again (store-unreachable)")


def test_a_disk_that_fills_is_shown_with_what_fills_it_on_the_page_and_in_the_verdict_alike(desk: FaultyNode) -> None:
    log = desk.node.logs.store.log(LogSpec("weather"))
    asked = AskedInProcess(desk.node)
    asked.app.poller = desk.poller
    desk.poller.verdict()
    desk.clock.advance(61)  # the first sample of this minute has the sizes
    with FAULTS["a disk that fills"](desk):
        with log.writer() as writer:
            writer.append([Message(os.urandom(3_000))])
        (issue,) = desk.poller.verdict().issues
        assert issue.kind == "disk-filling" and "what grew most: log weather (+" in issue.what, issue
        assert issue.what.endswith("most of it is not data of this node"), "3 kB do not explain 37.5 GB"
        (disk,) = asked.api("/system/disks")["items"]
        assert disk["is_filling"] and 300 < disk["full_in_seconds"] < 500
        page = asked.page("/system")
        assert issue.what.partition(": ")[0][1:] in page and "1 issue" in page and "<code>millstream log tier" in page
    desk.poller.look_at_process()
    assert "no problem is known" in asked.page("/system") and not asked.api("/system/disks")["items"][0]["is_filling"]


def test_kinds_that_are_ignored_are_no_issues(desk: FaultyNode) -> None:
    (desk.folder / "policies" / "duplication-accounts.json").write_text("[]")
    (issue,) = desk.poller.verdict().issues
    assert issue.kind == "unprotected"
    facts = desk.poller.facts()
    limits = msgspec.structs.replace(facts.limits, ignore=("unprotected",))
    assert judge(msgspec.structs.replace(facts, limits=limits)).ok


def test_items_of_a_space_without_a_policy_are_checked_and_may_have_copies(desk: FaultyNode) -> None:
    with FAULTS["a space without a policy"](desk):
        (issue,) = desk.poller.verdict().issues
        desk.command("mill", "check")
        report = desk.node.mill.reports.archive.latest("one", "drafts")
        assert report is not None and report.listed == 1
        assert issue.kind == "uncovered-space"
        assert issue.meaning == "Its new and changed items are not copied to another store."
    (desk.folder / "policies" / "duplication-accounts.json").write_text("[]")
    (issue,) = [issue for issue in desk.poller.verdict().issues if issue.kind == "unprotected"]
    assert desk.node.stores.manifest.replicas("photos", "a")[1].store == "two", "the copies are kept"
    assert issue.meaning == "No new or changed item is copied to another store."
