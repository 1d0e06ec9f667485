"""Pages and answers of a node in odd states claim nothing that is not known."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import AskedInProcess, asked_in_process

from millstream.anchoring.journal_reader import BatchRow
from millstream.batching import Reject
from millstream.cli.main import run
from millstream.console.rendering import idle_since, spans
from millstream.core.clock import MICROSECONDS
from millstream.core.retry import NO_RETRY
from millstream.core.sql import waiting_with
from millstream.log import LogSpec, Message
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult
from millstream.node import Node
from millstream.queue import queue_log
from millstream.rest.views import queues as queue_views
from millstream.settings import load_settings
from millstream.status import snapshot
from millstream.status.models import Sample
from millstream.status.node_view import NodeView
from millstream.stores import LocalStore
from millstream.testing.batches import CONFIG, make_batch
from millstream.testing.damage import flip_bit

PAIR = [{"srcStoreId": "one", "destStoreId": "two"}]
POLICY = "local-duplication-policy.json"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node whose policy copies from the store "one" to "two", with nothing in either."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    stores = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}"\n' for name in ("one", "two")]
    (folder / "millstream.toml").write_text("\n".join([*stores, "[mill.change_guard]\nleast = 2\n"]))
    (folder / "policies" / "duplication-accounts.json").write_text('["local"]')
    (folder / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": PAIR}))
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("s")
    return folder


def fill(data: Path, count: int) -> LocalStore:
    """*count* items in the space "s" of the source, copied."""
    source = LocalStore(data.parent / "one")
    for number in range(count):
        source.put("s", f"{number:03}", io.BytesIO(b"bytes"))
    assert run(["mill", "duplicate", "--data", str(data)]) == 0
    return source


def test_p9_an_empty_space_has_no_coverage_and_says_that_it_is_empty(data: Path) -> None:
    assert run(["mill", "check", "--data", str(data)]) == 0
    with asked_in_process(data) as node:
        assert node.api("/overview")["checks"]["coverage"] is None
        assert [row["coverage"] for row in node.api("/integrity/reports")["items"]] == [None, None]
        assert node.api("/integrity/report?store=one&space=s")["coverage"] is None
        assert "the space is empty" in node.page("/integrity/space?store=one&space=s")
        assert "Nothing was checked yet, and nothing waits for a person" in node.page("/")
        for page in ("/", "/integrity", "/integrity/reports", "/integrity/space?store=one&space=s"):
            assert "100 %" not in node.page(page), page


def test_p9_copies_that_could_not_be_read_do_not_count_as_checked(data: Path) -> None:
    fill(data, 2)
    with asked_in_process(data) as node:
        at = node.node.clock.now()
        unread = [
            CheckResult("two", "s", name, CheckVerdict.ERROR, "B22", "unreachable", "the provider did not answer", at)
            for name in ("000", "001")
        ]
        node.node.stores.manifest.writer.apply(unread)
        (row,) = node.api("/integrity/spaces?store=two")["items"]
        assert (row["items"], row["checked"], row["coverage"], row["newest_check"]) == (2, 0, 0.0, None)
        assert "no fault at the last check" not in node.page("/")
        assert "could not be read" in node.api("/overview/faults")["items"][0]["text"]


def test_p9_a_store_that_is_not_mounted_has_no_coverage_in_the_report_on_it(data: Path) -> None:
    fill(data, 1)
    shutil.rmtree(data.parent / "two")
    (data.parent / "two").touch()  # nothing can be listed there
    run(["mill", "check", "--store", "two", "--space", "s", "--data", str(data)])
    with asked_in_process(data) as node:
        rows = node.api("/integrity/reports")["items"]
        assert [(row["result"], row["coverage"]) for row in rows if row["store"] == "two"] == [("INCOMPLETE", None)]
        assert "100 %" not in node.page("/integrity/reports")


def test_a_what_if_says_why_the_guard_would_hold_the_whole_plan(data: Path) -> None:
    source = fill(data, 20)
    for number in range(15):
        source.delete("s", f"{number:03}")
    names = [f"{number:03}" for number in range(15)]
    assert run(["mill", "forget", "one", "s", *names, "--data", str(data)]) == 0
    text = json.dumps({"defaultPolicies": PAIR})
    with asked_in_process(data) as node:
        (plan,) = node.api("/policies/local/check", {"text": text})["plans"]
        assert (plan["deletes"], plan["held"]) == (15, 0)
        assert plan["hold_reason"].startswith("15 deletes of 20 copies")
    assert (
        run(
            [
                "mill",
                "policy",
                "save",
                "local",
                str(data / "policies" / "local-duplication-policy.json"),
                "--data",
                str(data),
            ]
        )
        == 0
    )
    with asked_in_process(data) as node:
        assert "held as a whole" in node.page("/policies/local?number=1")
    assert run(["mill", "duplicate", "--data", str(data)]) == 5


def test_messages_are_in_a_batch_rejected_or_neither_and_logs_without_batches_are_named(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path / "node")})
    with Node.open(settings, create=True) as node:
        for name, count in (("weather", 10), ("flights", 7)):
            with node.logs.store.log(LogSpec(name)).writer() as writer:
                writer.append([Message(b"x")] * count)
        batches = [make_batch([1, 2, 3]), make_batch([4])]
        node.anchoring.batch_writer.add("weather", batches, [Reject(5, "late")], config=CONFIG)
        asked = AskedInProcess(node)
        flights = ["flights", False, 7, 0, 0, 0]
        for state in ("in the journal", "anchored and read back"):
            rows = asked.api("/batches/logs")["items"]
            assert [list(row.values()) for row in rows] == [flights, ["weather", True, 10, 4, 1, 5]], state
            figures = asked.api("/overview")["batches"]
            names = ("eligible", "in_batches", "rejected_messages", "neither", "unbatched", "unbatched_logs")
            assert [figures[name] for name in names] == [10, 4, 1, 5, 7, 1], state
            assert "5 messages in no batch yet" in asked.page("/") and "4 of 10" in asked.page("/")
            assert "not batched" in asked.page("/batches")
            node.anchoring.batch_writer.cut(force=True)


@pytest.fixture
def batching(tmp_path: Path) -> Iterator[Node]:
    """A node whose log ``weather`` has ten messages; the first four are in batches that wait for an anchor."""
    settings, _ = load_settings({"data": str(tmp_path / "node")})
    with Node.open(settings, create=True) as node:
        with node.logs.store.log(LogSpec("weather")).writer() as writer:
            writer.append([Message(b"x")] * 10)
        node.anchoring.batch_writer.add("weather", [make_batch([1, 2, 3]), make_batch([4])], [], config=CONFIG)
        yield node


def test_a_batch_counts_once_between_its_observation_and_the_end_of_its_cut(
    batching: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batching.anchoring.journal, "observed", killed)
    with pytest.raises(KeyboardInterrupt):
        batching.anchoring.batch_writer.cut(force=True)
    (row,) = AskedInProcess(batching).api("/batches/logs")["items"]
    assert (row["messages"], row["in_batches"], row["neither"]) == (10, 4, 6)


def test_no_log_has_more_messages_in_batches_than_messages_while_it_grows(
    batching: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_log = snapshot.log_row

    def grown(view: NodeView, name: str, troubles: dict[str, str]) -> Any:
        row = read_log(view, name, troubles)
        if name == "weather":
            with batching.logs.store.log(LogSpec("weather")).writer() as writer:
                writer.append([Message(b"x")] * 3)
            batching.anchoring.batch_writer.add("weather", [make_batch(range(5, 14))], [], config=CONFIG)
        return row

    monkeypatch.setattr(snapshot, "log_row", grown)
    figures = AskedInProcess(batching).api("/overview")["batches"]
    assert figures["in_batches"] <= figures["eligible"], figures


def test_a_bar_is_empty_where_there_is_nothing_and_red_only_for_the_share_that_failed(data: Path) -> None:
    fill(data, 4)
    assert run(["mill", "check", "--data", str(data)]) == 0
    flip_bit(next(path for path in (data.parent / "two").rglob("000*") if path.is_file()))
    assert run(["mill", "check", "--store", "two", "--data", str(data)]) == 1
    with asked_in_process(data) as node:
        page = node.page("/integrity")
        assert page.count('class="good" width="100.00"') == 2 and page.count('class="bad" width="25.00"') == 1


def test_pages_show_the_states_of_batches_in_plain_words(data: Path) -> None:
    with asked_in_process(data) as node:
        page = node.page("/batches")
    for word in ("accepted", "being anchored", "anchored", "verified", "rejected"):
        assert f'">{word}</span>' in page, word
    assert ">cut</span>" not in page and ">observed</span>" not in page


def test_the_list_of_rejected_batches_points_to_the_rejected_messages_if_there_are_only_those(data: Path) -> None:
    with asked_in_process(data) as asked:
        assert "No such batch." in asked.page("/batches?only=bad")
    settings, _ = load_settings({"data": str(data)})
    with Node.open(settings, create=True) as node:
        with node.logs.store.log(LogSpec("weather")).writer() as writer:
            writer.append([Message(b"x")] * 2)
        node.anchoring.batch_writer.add("weather", [make_batch([1])], [Reject(2, "late")], config=CONFIG)
        page = AskedInProcess(node).page("/batches?only=bad")
    assert "No rejected batches; rejected messages are listed above." in page and "No such batch." not in page


def test_a_chart_of_zeros_is_a_sentence_only_if_all_of_its_time_is_known() -> None:
    def samples(*seconds: int) -> list[Sample]:
        return [
            Sample(at=one * MICROSECONDS, messages=7, batches=0, anchors=0, open_tasks=0, dead_tasks=0)
            for one in seconds
        ]

    assert idle_since(samples(100, 160, 220), [0, 0, 0]) == 100 * MICROSECONDS
    assert idle_since(samples(100, 160, 220), [0, 1, 0]) is None
    assert idle_since(samples(100, 400), [0, 0]) is None, "the node was down in between"
    assert idle_since(samples(100), [0]) is None and idle_since([], []) is None


def test_batches_that_last_are_drawn_from_their_first_to_their_last_message() -> None:
    def row(number: int, source: str, start: int, end: int | None) -> BatchRow:
        return BatchRow(number, "flights", f"b{number}", source, start, 10, "observed", 1, None, end, "window")

    drawn = spans([row(1, "UA", 100, 200), row(2, "AA", 150, 150), row(3, "UA", 250, 300), row(4, "UA", 280, None)])
    assert drawn is not None and (drawn.first, drawn.last) == (100, 300)
    bars = {lane: [(left, wide) for left, wide, _ in rows] for lane, rows in drawn.lanes.items()}
    assert bars == {
        "flights AA": [("240.00", "1.50")],
        "flights UA": [("0.00", "480.00"), ("720.00", "240.00"), ("864.00", "1.50")],
    }
    assert spans([row(1, "UA", 100, 100), row(2, "AA", 150, None)]) is None, "nothing lasts"
    assert spans([row(n, f"s{n}", n, n + 9) for n in range(21)]) is None, "too many sources"
    assert spans([]) is None


UNREADABLE = {
    "mill_manifest": (
        ("/integrity/spaces", "/integrity/findings", "/integrity/findings/rows"),
        ("copies", "copies_checked", "copies_failed"),
        ["copies", "checks"],
    ),
    "anchor_index_anchors": (
        ("/batches/logs", "/batches/outcomes/weather/1"),
        ("batches_total", "anchors_invalid", "anchors_behind"),
        ["batches", "anchors"],
    ),
    "anchor_batches": (
        ("/batches/states", "/batches/ends", "/batches/logs"),
        (),
        ["batches"],
    ),
    "anchor_rejects": (("/batches/rejects", "/batches/logs"), (), ["batches"]),
}
"""Tables, the views that read them, the metrics, and the steps of the overview."""


@pytest.mark.parametrize("table", UNREADABLE)
def test_p9_counts_that_cannot_be_read_are_unknown_and_not_zero(tmp_path: Path, table: str) -> None:
    views, metrics, steps = UNREADABLE[table]
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as created:
        log = created.logs.store.log(LogSpec("weather"))
        with log.writer("test") as writer:
            writer.append([Message(b"x")])
    with asked_in_process(tmp_path) as node:
        before = node.ask("GET", "/metrics")[1]
        assert all(f"\nmillstream_{name} 0" in before for name in metrics)
        assert all(node.ask("GET", f"/api/v1{view}")[0] == 200 for view in views)
        with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database, database:
            database.execute(f"ALTER TABLE {table} RENAME TO hidden")
        for view in views:
            status, text = node.ask("GET", f"/api/v1{view}")
            assert (status, json.loads(text)["code"]) == (503, "busy"), view
        if metrics:
            after = node.ask("GET", "/metrics")[1]
            assert not [name for name in metrics if f"\nmillstream_{name} " in after]
            assert "millstream_up 1" in after
            assert json.loads(node.ask("GET", "/api/v1/overview")[1])["unreadable"] == steps
            assert node.page("/").count("cannot be read: see the issues") == len(steps)
        if table == "anchor_index_anchors":
            page = node.page("/batches")
            assert "Unknown: the numbers cannot be read." in page and "not batched" not in page
            assert "unknown: it cannot be read" in node.page("/logs/weather/1")


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """A node with two logs and a queue with a task."""
    folder = tmp_path / "node"
    with Node.open(load_settings({"data": str(folder)})[0], create=True) as node:
        for name in ("weather", "flights"):
            with node.logs.store.log(LogSpec(name)).writer("test") as writer:
                writer.append([Message(b"x")])
        node.queues.open("audit").put([b"task"])
    return folder


def hide_blocks(folder: Path, log: str) -> None:
    """Make the log *log* of the node in *folder* unreadable."""
    with contextlib.closing(sqlite3.connect(folder / "log.db")) as database, database:
        (number,) = database.execute("SELECT number FROM logs WHERE name = ?", (log,)).fetchone()
        database.execute(f"ALTER TABLE blocks_{number} RENAME TO hidden_{number}")


def test_p9_a_log_that_cannot_be_read_is_named_and_not_just_left_out(logged: Path) -> None:
    hide_blocks(logged, "weather")
    with asked_in_process(logged) as node:
        for view in ("/logs", "/consumers", "/consumers?log=weather", "/workers"):
            found = node.api(view)
            assert (found["total"], list(found["unreadable"])) == (None, ["log weather"]), view
            status, text = node.ask("GET", f"/api/v1{view}{'&' if '?' in view else '?'}format=csv")
            assert (status, "log weather cannot be read" in text) == (503, True), view
        assert "flights" in [row["log"] for row in node.api("/logs")["items"]]
        assert node.api("/consumers?log=flights")["unreadable"] == {}
        assert list(node.api("/batches/logs")["unreadable"]) == ["log weather"]
        assert node.api("/overview")["unreadable"] == ["log", "batches"], "their counts lack this log"
        for page in ("/logs", "/workers", "/batches"):
            assert "Unknown: log weather cannot be read" in node.page(page), page
        for page, said in (("/logs?kind=ledger", "No such log"), ("/workers", "No active"), ("/", "No consumers yet")):
            assert said not in node.page(page), page


def test_p9_no_log_is_listed_only_if_there_is_none(logged: Path) -> None:
    with asked_in_process(logged) as node:
        assert [node.api(view)["unreadable"] for view in ("/logs", "/consumers", "/workers")] == [{}, {}, {}]
        assert "No consumers yet" in node.page("/")
        with contextlib.closing(sqlite3.connect(logged / "log.db")) as database, database:
            database.execute("ALTER TABLE logs RENAME TO hidden")
        for view in ("/logs", "/consumers", "/workers"):
            assert node.ask("GET", f"/api/v1{view}")[0] == 503, view


def test_p9_a_queue_that_cannot_be_read_is_named_and_not_just_left_out(logged: Path) -> None:
    """Its log is none of messages: their counts are known."""
    with asked_in_process(logged) as node:
        assert node.api("/queues")["unreadable"] == {}
    hide_blocks(logged, queue_log("audit").name)
    with asked_in_process(logged) as node:
        for view in ("/queues", "/alarms", "/dead-letters", "/workers/pools"):
            found = node.api(view)
            assert (found["total"], list(found["unreadable"])) == (None, ["queue audit"]), view
        for page in ("/queues", "/dead-letters", "/workers", "/"):
            assert "Unknown: queue audit cannot be read" in node.page(page), page
        assert node.api("/overview")["unreadable"] == []
        assert "No task is dead" not in node.page("/dead-letters") and "No active alarms." not in node.page("/queues")


def hide_table(folder: Path, table: str) -> None:
    """Make the table *table* of the node in *folder* unreadable."""
    with contextlib.closing(sqlite3.connect(folder / "node.db")) as database, database:
        database.execute(f"ALTER TABLE {table} RENAME TO hidden")


def test_p9_vanished_items_that_cannot_be_read_are_unknown_and_not_zero(data: Path) -> None:
    fill(data, 1)
    pages = ("/integrity", "/integrity/findings", "/integrity/space?store=one&space=s")
    with asked_in_process(data) as node, waiting_with(NO_RETRY):
        assert {row["vanished"] for row in node.api("/integrity/spaces")["items"]} == {0}
        assert not any("which items vanished cannot be read" in node.page(page) for page in pages)
        hide_table(data, "mill_held_items")
        assert {row["vanished"] for row in node.api("/integrity/spaces")["items"]} == {None}
        assert node.ask("GET", "/api/v1/integrity/spaces?sort=vanished")[0] == 503
        for page in pages:
            assert "which items vanished cannot be read" in node.page(page), page


def test_p9_a_search_says_that_the_spaces_cannot_be_read(data: Path) -> None:
    fill(data, 1)
    with asked_in_process(data) as node:
        hide_table(data, "mill_manifest")
        notes = {row["kind"]: row["note"] for row in node.api("/search?q=s")["searched"]}
        assert notes["space"] == "not searched: the spaces cannot be read" and notes["item"]


def test_p9_a_damaged_report_is_named_and_not_just_left_out(data: Path) -> None:
    fill(data, 1)
    assert run(["mill", "check", "--data", str(data)]) == 0
    with asked_in_process(data) as node:
        assert (len(node.api("/integrity/reports")["items"]), node.api("/integrity/reports")["unreadable"]) == (2, {})
    report = next(path for path in (data / "reports").rglob("*.json") if "two" in str(path))
    report.write_text("{")
    with asked_in_process(data) as node:
        for sort in ("name", "failed"):
            found = node.api(f"/integrity/reports?sort={sort}")
            assert ([row["store"] for row in found["items"]], found["total"]) == (["one"], None)
            assert list(found["unreadable"]) == ["the report on s in two"]
        assert "Unknown: the report on s in two cannot be read" in node.page("/integrity/reports")


def test_p9_the_files_of_an_anchor_whose_manifest_is_lost_are_unknown(batching: Node) -> None:
    batching.anchoring.batch_writer.cut(force=True)
    node = AskedInProcess(batching)
    (manifest, *files) = node.api("/anchors/1/files")["items"]
    assert manifest["kind"] == "manifest" and files
    next(batching.folder.rglob(f"*{manifest['cid']}*")).unlink()
    status, text = node.ask("GET", "/api/v1/anchors/1/files")
    assert (status, "the manifest of anchor 1 cannot be read" in text) == (409, True)
    assert node.api("/anchors/1")["trouble"]
    assert node.ask("GET", "/api/v1/anchors/2/files")[0] == 404


def test_p9_witnesses_of_a_policy_that_cannot_be_read_are_unknown_and_not_none(tmp_path: Path) -> None:
    with Node.open(load_settings({"data": str(tmp_path / "node")})[0], create=True) as node:
        node.anchoring.batch_writer.add("weather", [make_batch([1])], [], config=CONFIG)
        node.anchoring.batch_writer.cut(force=True)
        assert AskedInProcess(node).api("/ledgers")["items"][0]["cosigned"] is None
        assert "No witnesses are configured" in AskedInProcess(node).page("/ledgers")
    (tmp_path / "node" / "millstream.toml").write_text(f'[anchoring]\nwitness_policy = "{tmp_path}/lost"\n')
    with asked_in_process(tmp_path / "node") as asked:
        assert asked.api("/ledgers")["items"][0]["cosigned"] is None
        assert asked.api("/ledgers/anchors")["policy_problem"]
        assert [asked.ask("GET", f"/api/v1/ledgers/anchors/{part}")[0] for part in ("witnesses", "cosignatures")] == [
            503,
            503,
        ]
        page = asked.page("/ledgers")
    assert "No witnesses are configured" not in page and "the witness policy cannot be read" in page


def test_p9_it_is_unknown_and_not_false_whether_a_proof_holds_while_the_files_cannot_be_read(batching: Node) -> None:
    batching.anchoring.batch_writer.cut(force=True)
    batching.logs.store.log(LogSpec("weather")).trim(11)  # its messages are not those of the batches
    node = AskedInProcess(batching)
    proof = node.ask("GET", "/api/v1/proofs/weather/1")[1]
    assert node.api("/proofs/verify", {"proof": proof})["holds"]
    cas = batching.folder / "cas"
    cas.rename(batching.folder / "away")
    cas.touch()
    for body in ({"proof": proof},):
        status, text = node.ask("POST", "/api/v1/proofs/verify", body)
        assert (status, json.loads(text)["code"], node.headers[b"retry-after"]) == (503, "busy", b"5")
    assert node.ask("GET", "/api/v1/proofs/weather/1/copies")[0] == 503
    assert "does not hold" not in node.page("/proof?log=weather&id=1")
    cas.unlink()
    status, text = node.ask("GET", "/api/v1/proofs/weather/1/copies")
    assert status == 404, text


def test_p9_a_preview_that_fails_says_that_its_effects_are_unknown(data: Path) -> None:
    fill(data, 1)
    text = json.dumps({"defaultPolicies": PAIR})
    with asked_in_process(data) as node:
        assert run(["mill", "policy", "save", "local", str(data / "policies" / POLICY), "--data", str(data)]) == 0
        assert node.api("/policies/local/versions/1/plans")["total"] == 1
        shutil.rmtree(data.parent / "one")
        (data.parent / "one").touch()
        found = node.api("/policies/local/check", {"text": text})
        assert found["plans"] == [] and found["plans_unknown"]
        assert node.ask("GET", "/api/v1/policies/local/versions/1/plans")[0] in (409, 503)
        page = node.page("/policies/local?number=1")
        assert "what it would copy cannot be computed" in page and "Nothing to copy." not in page


def test_a_withdrawn_policy_is_not_taken_for_the_one_in_force(data: Path) -> None:
    fill(data, 1)
    with asked_in_process(data) as node:
        text = json.dumps({"defaultPolicies": PAIR})
        assert node.api("/policies/local/check", {"text": text})["changes"] == []
        (data / "policies" / "duplication-accounts.json").write_text("[]")
        assert node.api("/policies/local/check", {"text": text})["changes"]


def test_a_batch_whose_file_is_lost_is_shown_with_the_reason(batching: Node) -> None:
    batching.anchoring.batch_writer.cut(force=True)
    node = AskedInProcess(batching)
    batch = node.api("/batches")["items"][0]["batch"]
    where = f"log=weather&batch={batch}"
    before = node.api(f"/batches/one?{where}")
    assert before["header"] and before["trouble"] is None
    (batching.folder / "cas" / before["anchored"][0]["file"]).unlink()
    found = node.api(f"/batches/one?{where}")
    assert (found["row"], found["anchored"], found["header"]) == (before["row"], before["anchored"], None)
    assert "cannot be read" in found["trouble"] and "cannot be read" in node.page(f"/batches/one?{where}")
    assert node.ask("GET", f"/api/v1/batches/one/messages?{where}")[0] == 409


def test_a_form_names_as_many_dead_tasks_as_it_discards(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_views, "MOST_AT_ONCE", 2)
    with asked_in_process(data) as node:
        queue = node.node.queues.open("bit-error")
        queue.put([b"task"] * 3)
        for lease in queue.lease(3, visibility=60):
            queue.dead_letter(lease, cause="no permission")
        assert "The first 2 of 3 dead tasks" in node.form("/queues/bit-error/discard", by="all")
        assert node.api("/queues/bit-error/discard", {"everything": True, "reason": "test"})["tasks"] == 2
        assert "All 1 dead tasks" in node.form("/queues/bit-error/discard", by="all")


def test_p9_the_overview_is_shown_while_no_queue_can_be_read(logged: Path) -> None:
    with asked_in_process(logged) as node:
        assert node.api("/overview")["unreadable"] == []
        with contextlib.closing(sqlite3.connect(logged / "log.db")) as database, database:
            database.execute("ALTER TABLE logs RENAME TO hidden")
        found = node.api("/overview")
        assert {"queues", "copies", "checks"} <= set(found["unreadable"]) and found["queues"] == []
        assert "counters" in str(found["verdict"]["unknown"])
        assert "the queues cannot be read, see the issues" in node.page("/")
        status, text = node.ask("GET", "/metrics")
        assert (status, "\nmillstream_up 1" in text, "millstream_queue_ready{" in text) == (200, True, False)
