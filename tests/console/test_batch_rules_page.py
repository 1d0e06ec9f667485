"""The page of the batching rules, and the same for programs: in force, earlier, not reached yet, and not known."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process import AskedInProcess, asked_in_process

from millstream.batching.service_state import decode_state, write_state
from millstream.cli.change_log import os_user
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.core.timestamps import format_timestamp
from millstream.log import LogSpec, open_store
from support.commands import run_command

BEGIN = SystemClock().now() // MICROSECONDS * MICROSECONDS - 1000 * MICROSECONDS
SETTINGS = '[batching]\nwindow = "{}"\nmax_delay = "2s"\n'


def append(data: Path, first: int, last: int) -> None:
    """A message each second, received at once."""
    with open_store(f"sqlite:///{data / 'log.db'}") as store, store.log(LogSpec("in")).writer() as writer:
        times = [BEGIN + second * MICROSECONDS for second in range(first, last)]
        writer.append([Message(b"%d" % time, "k", "pump", time, time) for time in times])


def serve(data: Path) -> None:
    options = ("--log", "in", "--output", "out", "--once", "--no-ticks", "--data", str(data))
    assert run_command("batch", "serve", *options).code == 0


def configure(data: Path, window: str, more: str = "") -> None:
    (data / "millstream.toml").write_text(SETTINGS.format(window) + more, "utf-8")


def change(data: Path, second: int) -> int:
    """Let the rules in the settings begin at *second*; returns this time in microseconds."""
    since = BEGIN + second * MICROSECONDS
    options = ("--change", "--from", format_timestamp(since), "--data", str(data))
    assert run_command("batch", "rules", "out", *options).code == 0
    return since


@pytest.fixture
def data(tmp_path: Path) -> Path:
    configure(tmp_path, "9s")
    append(tmp_path, 0, 45)
    serve(tmp_path)
    return tmp_path


def rows(asked: AskedInProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked.api("/batches/rules")["items"]
    return found


def table(asked: AskedInProcess) -> list[str]:
    """The rows of the table on the page."""
    page = asked.page("/batches/rules")
    return page.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]


def test_the_rules_in_force_the_earlier_ones_and_those_not_reached_yet_are_listed(data: Path) -> None:
    configure(data, "4s")
    second = change(data, 60)
    append(data, 45, 70)
    serve(data)
    configure(data, "90s", "max_count = 5000\n")
    third = change(data, 200)
    with asked_in_process(data) as asked:
        listed = rows(asked)
        shown = table(asked)
        page = asked.page("/batches/rules")
        assert 'href="/batches/rules"' in asked.page("/batches")
        status, text = asked.ask("GET", "/api/v1/batches/rules?format=csv")
    names = ("log", "output", "number", "since", "state", "as_in_settings")
    assert [tuple(row[name] for name in names) for row in listed] == [
        ("in", "out", 1, None, "earlier", False),
        ("in", "out", 2, second, "in-force", False),
        ("in", "out", 3, third, "pending", True),
    ]
    assert [row["rules"]["window"] for row in listed] == [9_000_000, 4_000_000, 90_000_000]
    assert [row["recorded_by"] for row in listed] == [None, os_user(), os_user()]
    assert listed[1]["recorded_at"] <= listed[2]["recorded_at"]
    assert {row["batched_to"] for row in listed} == {BEGIN + 69 * MICROSECONDS}
    assert [len(shown), ">earlier<" in shown[0], ">in force<" in shown[1], ">not reached yet<" in shown[2]] == [
        3, True, True, True,
    ]  # fmt: skip
    assert "first message" in shown[0] and "<b>9 s</b>" in shown[0] and "unknown" not in shown[0]
    assert format_timestamp(second) in shown[1] and os_user() in shown[1] and "<b>4 s</b>" in shown[1]
    assert "<b>90 s</b>" in shown[2] and "max count <b>5,000</b>" in shown[2]
    assert "not in use" not in page
    assert (status, [row["state"] for row in csv.DictReader(io.StringIO(text))]) == (
        200,
        ["earlier", "in-force", "pending"],
    )


def test_rules_in_the_settings_that_are_not_in_use_are_named_with_the_command(data: Path) -> None:
    configure(data, "4s")
    with asked_in_process(data) as asked:
        page = asked.page("/batches/rules")
        (row,) = rows(asked)
    assert row["as_in_settings"] is False
    assert "the settings have other rules, which are not in use" in page
    assert "<code>millstream batch rules out --change</code>" in page
    assert format_timestamp(row["earliest_change"]) in page


def test_who_changed_the_rules_is_unknown_if_the_audit_log_does_not_say_it(data: Path) -> None:
    configure(data, "4s")
    since = change(data, 60)
    with asked_in_process(data) as asked:
        (event,) = asked.app.operator_log.of("change batching rules", "out")
        asked.app.operator_log.add("eve", event.action, "out", since=event.facts["since"], rules="of an earlier log")
        assert rows(asked)[1]["recorded_by"] == os_user()
        asked.node.logs.store.log(LogSpec("out")).put_metadata("batching/rules", _moved(asked, since))
        assert [rows(asked)[1][name] for name in ("recorded_at", "recorded_by")] == [None, None]
        assert table(asked)[1].count("<td>unknown</td>") == 2


def _moved(asked: AskedInProcess, since: int) -> bytes:
    """The recorded rules as if the change had begun a second later."""
    recorded = asked.node.logs.store.log(LogSpec("out")).metadata("batching/rules")
    return recorded.replace(b"%d" % since, b"%d" % (since + MICROSECONDS))


def test_a_log_without_batches_and_one_whose_state_is_damaged_are_listed_too(data: Path) -> None:
    configure(data, "9s", '[serve.batching]\nother = "other.batches"\n')
    state = FileDocument(data / "batching" / "out.state")
    kept = decode_state(state.read() or b"")
    write_state(state, msgspec.structs.replace(kept, snapshot=kept.snapshot[:-20] + bytes(20)))
    with asked_in_process(data) as asked:
        damaged, waiting = rows(asked)
        shown = table(asked)
    assert (damaged["output"], damaged["state"], damaged["rules"]) == ("out", "unknown", None)
    assert "checksum" in damaged["problem"] and damaged["problem"].split("`")[0] in shown[0].replace("&#39;", "'")
    names = (waiting["output"], waiting["state"], waiting["rules"]["window"])
    assert names == ("other.batches", "not-begun", 9_000_000)
    assert ">no batches yet<" in shown[1]
    assert 'href="/logs/' in shown[0] and 'href="/logs/' not in shown[1], "the logs need not exist yet"


def test_rules_of_some_sources_are_shown_and_escaped(data: Path) -> None:
    configure(data, "4s", '[[batching.override]]\nsource = "<i>pump</i>"\nkey = "&t"\nmax_bytes = 20000\n')
    change(data, 60)
    with asked_in_process(data) as asked:
        shown = table(asked)[1]
    assert "source &lt;i&gt;pump&lt;/i&gt;, key &amp;t: " in shown
    override = shown.partition('<p class="did">')[2]
    assert "max bytes <b>20,000</b>" in override and "window" not in override


def test_a_node_that_batches_nothing_says_so(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        store.log(LogSpec("in"))
    with asked_in_process(tmp_path) as asked:
        assert rows(asked) == []
        assert "No log is batched" in asked.page("/batches/rules")
