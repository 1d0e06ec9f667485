"""What an operator reads on pages: who changed what, why something failed, and what waits for a decision."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import AskedInProcess, asked_in_process

from millstream.cli.main import run
from millstream.mill.outcomes import OUTCOMES
from millstream.mill.tasks import Duplicate, encode_task
from millstream.stores import LocalStore
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
        ["spacesToIgnore: − films"], ["spacesToIgnore: + films"], ["defaultPolicies: + one → two"]
    ]  # fmt: skip
    page = asked.page("/audit")
    assert "spacesToIgnore: − films" in page and "version 1 again, as" in page
    assert all(event["facts"]["version"] not in page for event in events)
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
    pages = ("/integrity/findings", "/integrity/item?space=s&content_id=a", "/integrity/space?store=two&space=s")
    for page in pages:
        text = asked.page(page)
        assert "B3 checksum-mismatch" in text and "What to do: repair it in the console" in text, page
    assert 'href="/integrity?text=s"' in asked.page(pages[1]) and 'href="/integrity?store=two"' in asked.page(pages[2])


def test_no_worker_is_recommended_where_no_task_waits(asked: AskedInProcess) -> None:
    assert {row["desired_workers"] for row in asked.api("/workers/pools")["items"]} == {0}
