"""What an operator reads on pages: who changed what, why something failed, and what waits for a decision."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from in_process import AskedInProcess, asked_in_process

from millstream.cli.change_log import os_user
from millstream.cli.main import run
from millstream.core.sql import SqlBusyError
from millstream.mill.remedies import OUTCOMES
from millstream.mill.tasks import Duplicate, encode_task
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.rest.views import integrity, policies
from millstream.stores import LocalStore, StoreUnavailableError
from millstream.testing.damage import flip_bit

PAIR = [{"srcStoreId": "one", "destStoreId": "two"}]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[AskedInProcess]:
    """A node with two stores and the policy of the account "local"."""
    folder = tmp_path / "node"
    folder.mkdir()
    stores = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}"\n' for name in ("one", "two")]
    (folder / "millstream.toml").write_text("\n".join([*stores, "[mill.change_guard]\nleast = 2\n"]))
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"defaultPolicies": PAIR}))
    assert run(["mill", "policy", "save", "local", str(policy), "--data", str(folder)]) == 0
    with asked_in_process(folder) as found:
        yield found


def save(asked: AskedInProcess, policy: object) -> None:
    version = asked.api("/policies/local")["version"]
    body = {"text": json.dumps(policy)}
    assert asked.ask("PUT", "/api/v1/policies/local", body, **{"if-match": version})[0] == 200


def version_now(asked: AskedInProcess) -> str:
    return str(asked.api("/policies/local")["version"])


def test_the_audit_log_says_what_a_saved_policy_changed_and_that_an_undo_is_none_of_them(asked: AskedInProcess) -> None:
    save(asked, {"defaultPolicies": PAIR, "spacesToIgnore": ["films"]})
    version = asked.api("/policies/local")["version"]
    page = asked.form("/policies/local/restore", number="1", version=version, confirmed="yes")
    assert "Version 1 is in force again, as number 3." in page
    events = asked.api("/system/audit-log")["items"]
    assert [event["action"] for event in events] == ["restore policy", "save policy", "save policy"]
    assert events[0]["facts"]["restored"] == 1 and events[0]["facts"]["number"] == 3
    changes = [event["facts"]["changes"] for event in events]
    assert changes == [
        ["never copied: − films"], ["never copied: + films"], ["all other spaces: + one → two"]
    ]  # fmt: skip
    page = asked.page("/audit")
    assert "never copied: − films" in page and "version 1 again, as" in page
    withdrawn = asked.form("/policies/local/withdraw", version=version_now(asked), confirmed="yes", reason="it moved")
    assert "Policy withdrawn" in withdrawn
    page = asked.page("/audit")
    assert all(event["facts"]["version"] not in page for event in events) and "it moved" in page
    assert next(row["saved_by"] for row in asked.api("/policies/local/versions")["items"]) == events[0]["user"]


def test_the_audit_log_is_filtered_by_a_part_of_what_was_done_and_to_what(asked: AskedInProcess) -> None:
    add = asked.app.operator_log.add
    add("ada", "redrive", "queue audit, task 7")
    add("ada", "discard", "queue audit-old")
    for about, number in (("Audit", 2), ("redr", 1), ("loc", 1), ("100%", 0)):
        assert len(asked.api(f"/system/audit-log?about={about.replace('%', '%25')}")["items"]) == number, about
    assert [row["action"] for row in asked.api("/system/audit-log?target=queue audit")["items"]] == ["redrive"]
    assert "task 7" in asked.page("/audit?about=TASK") and "discard" not in asked.page("/audit?about=TASK")


def test_a_dead_task_shows_its_whole_cause_its_code_and_what_to_do(asked: AskedInProcess) -> None:
    queue = asked.node.queues.open("duplication-low")
    end = "the end of a long cause"
    for number in range(2):
        queue.put([encode_task(Duplicate("one", "two", "s", f"{number}"))])
        (lease,) = queue.lease(1, visibility=60)
        cause = f"DuplicationError: D14: the source's provider has no checksum of it ('{number}' {'.' * 400} {end})"
        queue.dead_letter(lease, cause=cause)
    (group,) = asked.api("/dead-letters")["items"]
    assert group["cause"].startswith("DuplicationError: D14: the source") and group["cause"].endswith(f"{end})")
    assert group["count"] == 2 and (group["code"], group["todo"]) == ("D14", OUTCOMES["D14"].todo)
    remedy = "What to do: put the item again through the node"
    for page in ("/dead-letters", "/queues/duplication-low", "/queues/duplication-low/1"):
        text = asked.page(page)
        assert end in text and "D14" in text and remedy in text, page


def test_dead_tasks_of_several_causes_are_redriven_at_once(asked: AskedInProcess) -> None:
    queue = asked.node.queues.open("duplication-low")
    queue.put([encode_task(Duplicate("one", "two", "s", name)) for name in "abc"])
    for lease, cause in zip(queue.lease(3, visibility=60), ("full", "slow", "slow"), strict=True):
        queue.dead_letter(lease, cause=cause)
    (issue,) = [one for one in asked.api("/overview/verdict")["issues"] if one["kind"] == "dead-letters"]
    assert issue["action"] == {"label": "Redrive…", "path": "/queues/duplication-low/redrive", "fields": {"by": "all"}}
    assert ">Redrive all</button>" in asked.page("/queues/duplication-low")
    confirm = asked.form(issue["action"]["path"], by="all")
    assert "All 3 dead tasks, whatever their cause, of the queue duplication-low: retried" in confirm
    asked.form(issue["action"]["path"], by="all", confirmed="yes")
    row = asked.api("/queues/duplication-low")["figures"]
    assert (row["ready"], row["dead"]) == (3, 0)


def test_nothing_is_changed_while_the_audit_log_does_not_answer(
    asked: AskedInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = asked.node.queues.open("duplication-low")
    queue.put([encode_task(Duplicate("one", "two", "s", "a"))])
    (lease,) = queue.lease(1, visibility=60)
    queue.dead_letter(lease, cause="full")
    monkeypatch.setattr(
        asked.app.operator_log, "_engine", sa.create_engine(f"sqlite:///{tmp_path / 'absent' / 'x.db'}")
    )
    chosen = {"task_ids": [lease.task_id]}
    for path, body in (("redrive", chosen), ("discard", {**chosen, "reason": "old"})):
        status, text = asked.ask("POST", f"/api/v1/queues/duplication-low/{path}", body)
        assert (status, "database" in text) == (503, True), text
        assert len(queue.dead()) == 1


def test_a_change_that_is_made_but_cannot_be_recorded_is_in_the_log_lines(
    asked: AskedInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **_facts: object) -> None:
        raise SqlBusyError("the database does not answer")

    queue = asked.node.queues.open("duplication-low")
    queue.put([encode_task(Duplicate("one", "two", "s", "a"))])
    (lease,) = queue.lease(1, visibility=60)
    queue.dead_letter(lease, cause="full")
    monkeypatch.setattr(OperatorAuditLog, "add_in", fail)
    body = {"task_ids": [lease.task_id], "reason": "old"}
    assert asked.ask("POST", "/api/v1/queues/duplication-low/discard", body)[0] == 503
    assert queue.dead() == []
    assert "not recorded in the operator audit log" in caplog.text
    assert "discard (queue duplication-low) by local" in caplog.text


def test_a_finding_shows_its_code_and_what_to_do(asked: AskedInProcess, tmp_path: Path) -> None:
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("s")
    LocalStore(tmp_path / "one").put("s", "a", io.BytesIO(b"bytes"))
    folder = str(tmp_path / "node")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    flip_bit(tmp_path / "two" / "s" / "a")
    assert run(["mill", "check", "--data", folder]) == 1
    (row,) = asked.api("/integrity/findings")["items"]
    assert (row["code"], row["todo"]) == ("B3", OUTCOMES["B3"].todo)
    (issue,) = [one for one in asked.api("/overview/verdict")["issues"] if one["kind"] == "findings"]
    assert issue["since"] == row["checked_at"]
    pages = ("/integrity/findings", "/integrity/item?space=s&content_id=a", "/integrity/space?store=two&space=s")
    for page in pages:
        text = asked.page(page)
        assert "B3 checksum-mismatch" in text and "What to do: repair the item in the console" in text, page
    assert 'href="/integrity?text=s"' in asked.page(pages[1]) and 'href="/integrity?store=two"' in asked.page(pages[2])


def test_findings_are_sorted_by_store_item_outcome_and_age(asked: AskedInProcess, tmp_path: Path) -> None:
    for name in ("one", "two"):
        for space in ("a", "b"):
            LocalStore(tmp_path / name).create_space(space)
    for space, item in (("a", "1"), ("b", "2")):
        LocalStore(tmp_path / "one").put(space, item, io.BytesIO(b"bytes"))
    folder = str(tmp_path / "node")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    (tmp_path / "two" / "a" / "1").unlink()
    flip_bit(tmp_path / "two" / "b" / "2")
    for space in ("b", "a"):
        assert run(["mill", "check", "--store", "two", "--space", space, "--data", folder]) == 1
    codes = {row["space"]: row["code"] for row in asked.api("/integrity/findings")["items"]}
    by_outcome = sorted(codes, key=lambda space: codes[space])
    for sort, spaces in {"store": ["a", "b"], "item": ["a", "b"], "oldest": ["b", "a"], "outcome": by_outcome}.items():
        assert [row["space"] for row in asked.api(f"/integrity/findings?sort={sort}")["items"]] == spaces, sort
        page = asked.page(f"/integrity/findings?sort={sort}")
        assert page.count('aria-sort="descending"') == 1 and page.index(f"{spaces[0]}/") < page.index(f"{spaces[1]}/")
    assert 'href="/integrity/findings?row=B3&amp;sort=oldest"' in asked.page("/integrity/findings?sort=oldest")
    assert asked.ask("GET", "/api/v1/integrity/findings?sort=nothing")[0] == 400


def test_findings_have_pages_and_say_where_the_list_ends(
    asked: AskedInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("s")
    for item in "abc":
        LocalStore(tmp_path / "one").put("s", item, io.BytesIO(b"bytes"))
    folder = str(tmp_path / "node")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    for item in "abc":
        flip_bit(tmp_path / "two" / "s" / item)
    assert run(["mill", "check", "--data", folder]) == 1
    found, offset = [], "0"
    while offset is not None:
        page = asked.api(f"/integrity/findings?limit=2&offset={offset}")
        found.append([row["content_id"] for row in page["items"]])
        assert page["total"] == 3
        offset = page["next"]
    assert found == [["a", "b"], ["c"]]
    first, last = (asked.page(f"/integrity/findings?store=two&limit=2&offset={offset}") for offset in (0, 2))
    assert 'rel="next" href="/integrity/findings?offset=2&amp;store=two"' in first and "⇤ first" not in first
    assert "s/c</a>" in last and 'href="/integrity/findings?store=two">⇤ first' in last and 'rel="next"' not in last
    assert "3 copies" in first and "No such findings" in asked.page("/integrity/findings?offset=3")
    monkeypatch.setattr(integrity, "MOST_FINDINGS", 3)
    assert asked.api("/integrity/findings")["total"] is None
    assert "Only the first 3 findings by store, space and item are listed" in asked.page("/integrity/findings")
    assert "No such findings among the first 3" in asked.page("/integrity/findings?row=B9")


def lose(asked: AskedInProcess, tmp_path: Path, count: int) -> None:
    """Let *count* of 12 copied items vanish from the source."""
    source, folder = LocalStore(tmp_path / "one"), str(tmp_path / "node")
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("s")
    for number in range(12):
        source.put("s", f"{number:02}", io.BytesIO(b"bytes"))
    assert run(["mill", "duplicate", "--data", folder]) == 0
    assert run(["mill", "check", "--data", folder]) == 0
    for number in range(count):
        source.delete("s", f"{number:02}")
    assert run(["mill", "duplicate", "--data", folder]) == (5 if count > 2 else 0)


def test_items_that_vanished_from_their_source_show_on_every_page_about_them(
    asked: AskedInProcess, tmp_path: Path
) -> None:
    lose(asked, tmp_path, 4)
    (plan,) = asked.api("/integrity/holds")["items"]
    assert (plan["number"], plan["vanished"], plan["deletes"]) == (1, 4, 0)
    (item, *_), since = asked.api("/integrity/holds/1/items")["items"], "No longer in its source one since <time"
    assert (item["content_id"], item["kind"]) == ("00", "vanished")
    page = asked.page("/integrity/item?space=s&content_id=00")
    assert since in page and 'href="/integrity/holds/1">plan 1</a>' in page and "is kept" in page
    assert '<td>one</td><td><span class="state warn">gone</span>' in page and page.count(">SUCCESS<") == 1
    assert "4 items</a> vanished from this store" in asked.page("/integrity/space?store=one&space=s")
    assert since not in asked.page("/integrity/item?space=s&content_id=11")
    assert '<a class="h gone"' in asked.page("/integrity") and "4 items</a> vanished" in asked.page(
        "/integrity/findings"
    )
    assert [row["vanished"] for row in asked.api("/integrity/spaces?store=one")["items"]] == [4]
    page = asked.page("/integrity/vanished?store=one&space=s")
    assert all(f"s/{number:02}</a>" in page for number in range(4)) and "s/04</a>" not in page
    page = asked.page("/")
    assert "A plan for s (one → two) is held: 4 of 12 copies have lost their original" in page
    assert 'href="/integrity/holds/1"' in page and "up to date" not in page


def test_items_that_vanished_within_the_budget_are_an_issue_until_they_are_back(
    asked: AskedInProcess, tmp_path: Path
) -> None:
    lose(asked, tmp_path, 2)
    (issue,) = asked.api("/overview/verdict")["issues"]
    assert (issue["kind"], issue["count"]) == ("vanished", 2)
    (first, _) = asked.api("/integrity/vanished")["items"]
    assert issue["since"] == first["since"]
    folder = str(tmp_path / "node")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    assert asked.api("/integrity/vanished")["items"][0]["since"] == first["since"], "it keeps its beginning"
    for number in range(2):
        LocalStore(tmp_path / "one").put("s", f"{number:02}", io.BytesIO(b"bytes"))
    assert run(["mill", "duplicate", "--data", folder]) == 0
    assert asked.api("/integrity/vanished")["items"] == []
    assert "vanished" not in [one["kind"] for one in asked.api("/overview/verdict")["issues"]]


def test_a_held_plan_lists_its_items_says_what_approve_does_and_can_be_rejected(
    asked: AskedInProcess, tmp_path: Path
) -> None:
    lose(asked, tmp_path, 4)
    folder = str(tmp_path / "node")
    keeps = "Keeps 4 copies in two without an original in one: an approval deletes no copy"
    first = asked.api("/integrity/holds/1/items?limit=3")
    assert [row["content_id"] for row in first["items"]] == ["00", "01", "02"] and first["next"] == "02"
    assert [row["content_id"] for row in asked.api("/integrity/holds/1/items?after=02")["items"]] == ["03"]
    for page in (asked.page("/integrity/holds/1"), asked.form("/integrity/holds/1/approve")):
        assert keeps in page and "Deletes and replaces nothing in two." in page and ">03</a>" in page
    asks = asked.form("/integrity/holds/1/reject")
    assert "required; kept in the operator audit log" in asks and "Single copies after recorded changes" in asks
    assert "Reason: " in asked.form("/integrity/holds/1/reject", confirmed="yes", reason="")
    page = asked.form("/integrity/holds/1/reject", confirmed="yes", reason="the disk was swapped")
    assert "Rejected by " in page and "the disk was swapped" in page and "Reject…" not in page and "Approve…" in page
    event = asked.api("/system/audit-log")["items"][0]
    assert (event["action"], event["reason"], event["facts"]["vanished"]) == ("reject", "the disk was swapped", 4)
    (issue,) = asked.api("/overview/verdict")["issues"]
    assert issue["kind"] == "plan-rejected" and issue["what"].endswith(": the disk was swapped")
    held_at = asked.api("/integrity/holds/1")["held_at"]
    assert run(["mill", "reject", "1", "--reason", "x", "--data", folder]) == 2
    assert run(["mill", "duplicate", "--data", folder]) == 5
    assert asked.api("/integrity/holds/1")["held_at"] == held_at
    assert asked.node.stores.change_guard.count_undecided() == 0
    assert run(["mill", "approve", "--all", "--data", folder]) == 0
    assert asked.api("/integrity/holds/1")["approved_at"] is None, "a rejected plan is approved only by its number"
    asked.form("/integrity/holds/1/approve", confirmed="yes", reason="meant so")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    assert asked.ask("GET", "/api/v1/integrity/holds/9")[0] == 404


def test_previews_of_policies_are_computed_one_at_a_time_and_for_a_limited_time(
    asked: AskedInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("s")
    text = json.dumps({"defaultPolicies": PAIR})
    checked = asked.api("/policies/local/check", {"text": text})
    assert (len(checked["plans"]), checked["unseen"], checked["plans_unknown"]) == (1, 0, None)
    monkeypatch.setattr(policies, "_LOCK_SECONDS", 0.01)
    with policies._what_if_lock:
        assert "Another preview" in asked.api("/policies/local/check", {"text": text})["plans_unknown"]
        assert asked.ask("GET", "/api/v1/policies/local/versions/1/plans")[0] == 503
    monkeypatch.setattr(policies, "PREVIEW_SECONDS", 0.0)
    checked = asked.api("/policies/local/check", {"text": text})
    assert (checked["plans"], checked["unseen"]) == ([], 1)
    many = f"{text}{chr(10) * (policies.MOST_DIFF_LINES + 1)}"
    assert "not compared line by line" in asked.api("/policies/local/check", {"text": many})["diff"][0]


def test_decisions_about_a_held_plan_are_recorded_with_them_or_not_made(
    asked: AskedInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_facts: object) -> None:
        raise SqlBusyError("the database does not answer")

    lose(asked, tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(OperatorAuditLog, "add_in", fail)
        for decision in ("approve", "reject"):
            status, text = asked.ask("POST", f"/api/v1/integrity/holds/1/{decision}", {"reason": "meant so"})
            assert (status, "database" in text) == (503, True)
        assert run(["mill", "approve", "1", "--data", str(tmp_path / "node")]) != 0
    (plan,) = asked.api("/integrity/holds")["items"]
    assert (plan["approved_at"], plan["rejected_at"]) == (None, None)
    assert run(["mill", "approve", "1", "--data", str(tmp_path / "node")]) == 0
    event = asked.app.operator_log.last(1)[0]
    assert (event.action, event.user, event.facts["plan"]) == ("approve", os_user(), 1)


def test_a_repair_that_fails_after_some_copies_is_recorded(
    asked: AskedInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("store two does not answer")

    monkeypatch.setattr(asked.node.mill.repairs.repairer, "repair", fail)
    item = {"space": "s", "content_id": "a", "reason": "drill"}
    assert asked.ask("POST", "/api/v1/integrity/repair", item)[0] == 503
    event = asked.app.operator_log.last(1)[0]
    assert (event.action, event.target, event.reason) == ("repair", "s/a", "drill")
    assert event.facts == {"error": "store two does not answer"}


def test_an_approved_plan_is_done_when_its_deletions_are_made(asked: AskedInProcess, tmp_path: Path) -> None:
    lose(asked, tmp_path, 4)
    names, folder = [f"{number:02}" for number in range(4)], str(tmp_path / "node")
    assert run(["mill", "forget", "one", "s", *names, "--data", folder]) == 0
    assert run(["mill", "duplicate", "--data", folder]) == 5
    (plan,) = asked.api("/integrity/holds")["items"]
    page = f"/integrity/holds/{plan['number']}"
    assert "Deletes 4 copies in two: their deletion is recorded." in asked.page(page)
    assert "its deletion waits for approval" in asked.page("/integrity/item?space=s&content_id=00")
    asked.form(f"{page}/approve", confirmed="yes", reason="deleted on purpose")
    assert "0 of 4 done" in asked.page("/integrity")
    assert run(["mill", "duplicate", "--data", folder]) == 0
    assert '<span class="state good">done</span>' in asked.page("/integrity")
    assert "its deletion waits" not in asked.page("/integrity/item?space=s&content_id=00")


def test_the_copies_card_is_not_well_while_copy_tasks_are_dead(asked: AskedInProcess) -> None:
    queue = asked.node.queues.open("duplication-high")
    queue.put([encode_task(Duplicate("one", "two", "s", "x"))])
    (lease,) = queue.lease(1, visibility=60)
    queue.dead_letter(lease, cause="DuplicationError: D14: no checksum")
    page = asked.page("/")
    assert "1 copy task failed" in page and "up to date" not in page and "Issues as of <time" in page
    (issue,) = [one for one in asked.api("/overview/verdict")["issues"] if one["kind"] == "dead-letters"]
    died_at = asked.api("/queues/duplication-high/causes")["items"][0]["first_died_at"]
    assert issue["what"].endswith("is dead: DuplicationError: D14: no checksum")
    (alarm,) = asked.api("/alarms")["items"]
    assert issue["since"] == alarm["since"] == died_at, "one beginning on every page"


def test_tables_are_sorted_by_what_an_operator_looks_for(asked: AskedInProcess, tmp_path: Path) -> None:
    source, folder = LocalStore(tmp_path / "one"), str(tmp_path / "node")
    for space, items in (("small", 1), ("middle", 3), ("large", 2)):
        for name in ("one", "two"):
            LocalStore(tmp_path / name).create_space(space)
        for number in range(items):
            source.put(space, f"{number}", io.BytesIO(b"x" * (100 if space == "large" else 1)))
    assert run(["mill", "duplicate", "--data", folder]) == 0
    for space in ("middle", "large", "small"):
        assert run(["mill", "check", "--space", space, "--data", folder]) == 0
    orders = {
        "largest": ["large", "middle", "small"],
        "items": ["middle", "large", "small"],
        "oldest": ["middle", "large", "small"],
        "name": ["large", "middle", "small"],
    }
    for sort, spaces in orders.items():
        rows = asked.api(f"/integrity/spaces?store=two&sort={sort}")["items"]
        assert [row["space"] for row in rows] == spaces, sort
        assert f'aria-sort="descending"><a href="/integrity?sort={sort}">' in asked.page(f"/integrity?sort={sort}")
    first = asked.api("/integrity/reports?sort=oldest&limit=1")
    assert first["items"][0]["space"] == "middle" and first["next"] == "1" and first["total"] == 6
    assert asked.ask("GET", "/api/v1/integrity/reports?sort=nothing")[0] == 400
    for page in ("/integrity", "/integrity/findings", "/integrity/reports", "/dead-letters"):
        assert not re.search(r'[?&;]sort=["&]', asked.page(page)), f"{page} leads to an order without a name"
    queue = asked.node.queues.open("duplication-low")
    for count, cause in ((1, "disk full"), (2, "no store")):
        queue.put([encode_task(Duplicate("one", "two", "s", f"{cause} {n}")) for n in range(count)])
        for lease in queue.lease(count, visibility=60):
            queue.dead_letter(lease, cause=cause)
    for sort, causes in (("largest", ["no store", "disk full"]), ("oldest", ["disk full", "no store"])):
        assert [row["cause"] for row in asked.api(f"/dead-letters?sort={sort}")["items"]] == causes
        page = asked.page(f"/dead-letters?sort={sort}")
        assert page.index(causes[0]) < page.index(causes[1])
    assert asked.page("/queues").index(">duplication-low</a>") < asked.page("/queues").index(">audit</a>")


def test_no_worker_is_recommended_where_no_task_waits(asked: AskedInProcess) -> None:
    assert {row["desired_workers"] for row in asked.api("/workers/pools")["items"]} == {0}
