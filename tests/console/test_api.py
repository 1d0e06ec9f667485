"""The interface for programs: it is what its description says, and it says clearly what it refuses."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from as_described import ask_as_described, described, described_operations, questions, routed
from known_ids import ask_with_known_ids
from raw_http import RawConnection
from world import DAMAGED, DEAD, Served, did, serving

from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.transparency.keys import LedgerKeys
from millstream.anchoring.transparency.policy import trusting
from millstream.anchoring.transparency.signed_note import COSIGNATURE, VerifierKey
from millstream.anchoring.transparency.tlog_proof import verify_tlog_proof
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.rest.api import api_routes
from millstream.rest.description import describe
from millstream.rest.openapi import encode
from millstream.testing.waiting import until
from suite.sizes import sized
from support.witnesses import TestWitness

API = "/api/v1"
DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
QUESTIONS = questions(described_operations(DESCRIPTION), lambda asked: asked.places)


def test_the_description_that_is_checked_in_is_the_one_that_is_served(served: Served) -> None:
    checked_in = DESCRIPTION.read_bytes()
    assert checked_in == encode(describe()), "run `make openapi` and look at what changed"
    assert served.ask("GET", f"{API}/openapi.json")[1] == json.loads(checked_in)


@pytest.mark.long
@pytest.mark.parametrize(("operation", "mode"), QUESTIONS)
def test_whatever_is_asked_the_answer_is_as_described_and_never_500(asked: Served, operation: str, mode: str) -> None:
    ask_as_described(DESCRIPTION, operation, mode, asked.url, sized(ci=2, long=200))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_whatever_is_asked_of_things_that_there_are_no_answer_is_500_and_few_are_404(
    copied: Callable[[], Path],
) -> None:
    with serving(copied(), broker=True) as served:
        examples, seconds = sized(quick=60, ci=120, long=150), sized(ci=0.0, long=600.0)
        statuses = ask_with_known_ids(DESCRIPTION, served.url, examples=examples, seconds=seconds)
    print(f"answers by status: {dict(sorted(statuses.items()))}")
    assert statuses[404] < statuses.total() / 2 < statuses.total() and statuses[200] > statuses.total() / 4


@pytest.mark.parametrize(
    ("path", "least"),
    [
        (path, least)
        for path, least in (
            ("/logs", 3), ("/consumers", 1), ("/logs/weather/messages", 50), ("/queues", 8), ("/policies", 1),
            ("/queues/duplication-high/dead", DEAD), ("/queues/duplication-high/causes", 2), ("/batches", 50),
            ("/batches/timeline", 2), ("/batches/rejects", 1), ("/batches/ends", 3), ("/batches/rules", 0),
            ("/batches/rejected?log=weather", 2), ("/batches?ended=conflict", 5), ("/anchors", 2),
            ("/batches/timeline?log=weather&since=0", 2), ("/integrity/spaces", 6),
            ("/integrity/findings", 1), ("/integrity/holds", 2), ("/policies/local/versions", 1),
            ("/integrity/items?store=second&space=photos", 14), ("/system/settings", 20), ("/system/versions", 5),
            ("/workers/pools", 5), ("/overview/faults", 3), ("/overview/history", 0), ("/topics", 0), ("/groups", 0),
            ("/integrity/repairs", 0), ("/system/audit-log", 0), ("/workers", 0),
        )
    ],
)  # fmt: skip
def test_every_table_is_to_be_had_as_json_and_as_csv(served: Served, path: str, least: int) -> None:
    status, listing, _ = served.ask("GET", API + path)
    assert status == 200 and len(listing["items"]) >= least
    mark = "&" if "?" in path else "?"
    status, text, headers = served.ask("GET", f"{API}{path}{mark}format=csv")
    rows = list(csv.reader(io.StringIO(text)))
    assert (
        status == 200
        and headers["content-type"].startswith("text/csv")
        and "attachment" in headers["content-disposition"]
    )
    if path not in ("/workers", "/overview/history"):  # these change by the moment
        assert len(rows) == 1 + len(listing["items"])
    for item in listing["items"][:1]:
        assert rows[0] == list(item)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
def test_a_body_of_another_type_is_refused_with_the_type_to_send(served: Served, kind: str) -> None:
    found = served.ask("POST", f"{API}/proofs/verify", b'{"proof":"{}"}', {"Content-Type": kind})
    assert (found[0], found[1]["code"]) == (415, "unsupported_media_type")
    assert "application/json" in found[1]["message"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON;charset=UTF-8", None])
def test_a_body_of_json_is_taken_however_its_type_is_written(served: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    assert served.ask("POST", f"{API}/proofs/verify", b'{"proof":"{}"}', headers)[1]["holds"] is False


@pytest.mark.parametrize("path", [f"{API}/proofs/verify", f"{API}/logs/weather/messages", "/sign-in", "/sign-out"])
def test_a_body_that_is_announced_as_too_long_is_refused_before_it_comes(served: Served, path: str) -> None:
    with RawConnection(int(served.address.rpartition(":")[2])) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {1 << 40}\r\n\r\n"
        connection.send(head.encode())
        assert connection.answer().status == 413
        assert connection.is_closed()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", f"{API}/logs", f"{API}/nothing"])
def test_errors_of_what_programs_ask_are_json(served: Served, path: str) -> None:
    status, found, _ = served.ask("DELETE", path)
    assert status in (404, 405) and found["code"] in ("not_found", "method_not_allowed")


def test_what_a_spreadsheet_would_run_is_text_in_a_table(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        body = {"body": "=HYPERLINK(1)", "key": "+1", "source": "@x"}
        status, appended, _ = served.ask("POST", f"{API}/logs/weather/messages", body)
        assert status == 200
        first = appended["id"]
        text = served.ask("GET", f"{API}/logs/weather/messages?first={first}&format=csv")[1]
        assert list(csv.reader(io.StringIO(text)))[1][3:8] == ["'@x", "'+1", "13", "'=HYPERLINK(1)", ""]


def test_a_message_with_the_source_of_ticks_is_refused_because_no_consumer_would_get_it(served: Served) -> None:
    for body in ("x", ""):
        message = {"body": body, "source": "millstream.tick"}
        status, refused, _ = served.ask("POST", f"{API}/logs/weather/messages", message)
        assert status == 400 and "the source 'millstream.tick' is reserved" in refused["message"]


def test_messages_are_found_by_id_and_by_time(served: Served) -> None:
    _, listing, _ = served.ask("GET", f"{API}/logs/weather/messages?first=10&limit=3")
    assert [row["id"] for row in listing["items"]] == [10, 11, 12] and listing["next"] == "13"
    time = listing["items"][1]["received_at"]
    found = served.ask("GET", f"{API}/logs/weather/messages?time={time}&limit=1")[1]["items"][0]
    assert found["received_at"] >= time
    whole = served.ask("GET", f"{API}/logs/weather/messages/10")[1]
    assert json.loads(whole["body"])["unit"] == "°F"
    assert served.ask("GET", f"{API}/logs/weather/messages/999999")[0] == 404
    assert served.ask("GET", f"{API}/logs/nothing/messages")[0] == 404


def test_a_message_of_a_damaged_block_is_not_said_to_be_absent(copied: Callable[[], Path]) -> None:
    folder = copied()
    with contextlib.closing(sqlite3.connect(folder / "log.db")) as database, database:
        (table,) = database.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'blocks_%' ORDER BY name"
        ).fetchone()
        first_id = database.execute(f"SELECT min(first_id) FROM {table}").fetchone()[0]
        database.execute(f"UPDATE {table} SET data = zeroblob(length(data))")
    with serving(folder) as served:
        names = [row["log"] for row in served.ask("GET", f"{API}/logs")[1]["items"]]
        answers = [served.ask("GET", f"{API}/logs/{name}/messages/{first_id}") for name in names]
    damaged = [found["message"] for status, found, _ in answers if status not in (200, 404)]
    assert len(damaged) == 1 and "damaged" in damaged[0], [(status, found) for status, found, _ in answers]


def test_totals_and_metrics_follow_the_kinds_that_the_store_keeps(copied: Callable[[], Path]) -> None:
    folder = copied()
    with open_store(f"sqlite:///{folder / 'log.db'}") as store:
        for name, kind in (("queue.orders", "application"), ("orders.ledger", "topic"), ("sums", "batches")):
            with store.log(LogSpec(name, kind=kind)).writer() as writer:
                writer.append([b"1", b"2"])
    with serving(folder) as served:
        kinds = {row["log"]: row["kind"] for row in served.ask("GET", f"{API}/logs")[1]["items"]}
        data = sorted(name for name, kind in kinds.items() if kind in ("application", "topic"))
        assert data == ["orders.ledger", "queue.orders", "weather"]
        assert {kind for name, kind in kinds.items() if name.startswith("system:")} >= {"ledger", "queue"}
        assert served.ask("GET", f"{API}/logs?kind=topic")[1]["total"] == 1
        assert served.ask("GET", f"{API}/logs?kind=messages")[0] == 400
        overview = served.ask("GET", f"{API}/overview")[1]
        assert overview["log"]["logs"] == 3
        metrics = served.ask("GET", "/metrics")[1]
        assert re.findall(r'log_last_id\{log="([^"]+)"', metrics) == data
        for name, status in (("system:ledger", 400), ("sums", 400), ("queue.orders", 200)):
            assert served.ask("POST", f"{API}/logs/{name}/messages", {"body": "x"})[0] == status


def changes_here(served: Served) -> list[dict[str, Any]]:
    """What the operator audit log has of changes over HTTP, the newest first: others made the node before."""
    return [one for one in served.ask("GET", f"{API}/system/audit-log")[1]["items"] if one["user"] == "local"]


def test_dead_tasks_are_redriven_and_discarded_with_a_trail(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        queue = f"{API}/queues/duplication-high"
        groups = served.ask("GET", f"{queue}/causes")[1]["items"]
        assert [group["count"] for group in groups] == [20, 10]
        assert served.ask("POST", f"{queue}/redrive", {})[0] == 400
        assert served.ask("POST", f"{queue}/redrive", {"task_ids": [1, 2]})[1]["tasks"] == 2
        assert served.ask("POST", f"{queue}/discard", {"cause": groups[0]["cause"]})[0] == 400  # no reason
        wanted = {"cause": groups[0]["cause"], "reason": "the store is gone for good"}
        assert served.ask("POST", f"{queue}/discard", wanted)[1]["tasks"] == 19
        assert served.ask("POST", f"{queue}/redrive", {"everything": True})[1]["tasks"] == 9
        figures = served.ask("GET", queue)[1]["figures"]
        assert (figures["ready"], figures["dead"]) == (11, 0)
        trail = changes_here(served)
        assert [(e["action"], e["reason"]) for e in trail] == [
            ("redrive", ""), ("discard", "the store is gone for good"), ("redrive", ""),
        ]  # fmt: skip


def test_a_queue_has_a_past_and_alarms_and_workers_that_there_should_be(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        queue = f"{API}/queues/duplication-high"
        served.ask("GET", f"{API}/overview")
        before = until(lambda: served.ask("GET", f"{queue}/history")[1]["items"], "a first sample")
        assert (before[0]["dead"], before[0]["ready"]) == (30, 0)
        (alarm,) = served.ask("GET", f"{API}/alarms")[1]["items"]
        assert (alarm["queue"], alarm["kind"], alarm["count"]) == ("duplication-high", "dead-letters", 30)
        served.ask("POST", f"{queue}/redrive", {"everything": True})

        def after() -> list[dict[str, int]]:
            found = served.ask("GET", f"{queue}/history?since={before[-1]['at']}")[1]["items"]
            return [sample for sample in found if sample["ready"] == 30]

        assert until(after, "a sample of what was redriven")[0]["dead"] == 0
        assert served.ask("GET", f"{API}/alarms")[1]["items"] == []
        assert len(served.ask("GET", f"{queue}/history?coarse=true")[1]["items"]) in (1, 2), "one a minute"
        assert served.ask("GET", f"{API}/queues/nothing/history")[0] == 404
        assert served.ask("GET", queue)[1]["figures"]["desired_workers"] == 1  # 30 tasks wait; all four say the same
        assert 'millstream_queue_desired_workers{queue="duplication-high"} 1' in served.ask("GET", "/metrics")[1]
        pools = {row["queue"]: row for row in served.ask("GET", f"{API}/workers/pools")[1]["items"]}
        assert (pools["duplication-high"]["desired_workers"], pools["duplication-high"]["waiting"]) == (1, 30)
        idle = {name for name, row in pools.items() if not row["desired_workers"]}
        assert idle == {name for name, row in pools.items() if not row["waiting"] + row["leased"]}
        assert "<dt>recommended workers</dt><dd>1</dd>" in served.ask("GET", "/queues/duplication-high")[1]


def test_a_dead_task_is_amended_over_what_was_seen_and_redriven_at_a_rate(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        queue = f"{API}/queues/duplication-high"
        task = served.ask("GET", f"{queue}/dead/5")[1]
        body = task["body"].replace('"gone"', '"second"')
        wanted = {"body": body, "seen": task["sha256"], "reason": "the store has another name now"}
        path = f"{queue}/dead/5/amend"
        assert served.ask("POST", path, {**wanted, "reason": ""})[0] == 400
        status, refused, _ = served.ask("POST", path, {**wanted, "body": '{"type": "nonsense"}'})
        assert status == 400 and "nonsense" in refused["message"]
        amended = served.ask("POST", path, wanted)[1]
        assert (amended["body"], amended["cause"]) == (body, task["cause"])
        assert served.ask("POST", path, wanted)[0] == 409  # somebody was faster
        assert served.ask("GET", f"{queue}/dead/99999")[0] == 404
        assert served.ask("POST", f"{queue}/redrive", {"everything": True, "per_second": 0.01})[1]["tasks"] == 30
        figures = served.ask("GET", queue)[1]["figures"]
        assert (figures["ready"], figures["delayed"], figures["dead"]) == (1, 29, 0)
        events = changes_here(served)
        assert [(e["action"], e["reason"]) for e in events] == [
            ("redrive", ""), ("amend", "the store has another name now"),
        ]  # fmt: skip
        assert '"gone"' in events[1]["facts"]["before"] and '"second"' in events[1]["facts"]["after"]


def test_a_policy_is_saved_only_over_the_version_that_was_seen(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        path = f"{API}/policies/local"
        _, policy, headers = served.ask("GET", path)
        assert headers["etag"] == f'"{policy["version"]}"'
        text = policy["text"].replace('"drafts"', '"drafts", "tmp"')
        assert served.ask("PUT", path, {"text": text})[0] == 428
        assert served.ask("PUT", path, {"text": "{"}, {"If-Match": headers["etag"]})[0] == 400
        status, saved, _ = served.ask("PUT", path, {"text": text}, {"If-Match": headers["etag"]})
        assert (status, saved["number"]) == (200, 2)
        status, refused, _ = served.ask("PUT", path, {"text": text}, {"If-Match": headers["etag"]})
        assert (status, refused["code"]) == (412, "changed_meanwhile")
        assert [row["number"] for row in served.ask("GET", f"{path}/versions")[1]["items"]] == [2, 1]


def test_a_policy_is_withdrawn_only_at_the_version_that_was_seen(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        path, reason = f"{API}/policies/local", {"reason": "it moved to another node"}
        version = served.ask("GET", path)[1]["version"]
        assert served.ask("POST", f"{path}/withdraw", reason)[0] == 428
        assert served.ask("POST", f"{path}/withdraw", reason, {"If-Match": "none"})[0] == 412
        assert served.ask("POST", f"{path}/withdraw", reason, {"If-Match": version})[1]["in_force"] is False
        assert [row["in_force"] for row in served.ask("GET", f"{API}/policies")[1]["items"]] == [False]
        event = served.ask("GET", f"{API}/system/audit-log?about=local")[1]["items"][0]
        assert (event["action"], event["reason"]) == ("withdraw policy", "it moved to another node")
        assert served.ask("POST", f"{path}/withdraw", reason, {"If-Match": version})[0] == 400


def test_a_what_if_says_what_a_policy_would_cause_and_changes_nothing(served: Served) -> None:
    path = f"{API}/policies/local"
    before = served.ask("GET", path)[1]
    only_second = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}
    found = served.ask("POST", f"{path}/check", {"text": json.dumps(only_second)})[1]
    assert found["error"] is None and found["diff"]
    by_pair = {(row["space"], row["pair"], row["stops"]): row for row in found["plans"]}
    assert by_pair["photos", "primary → second", False]["deletes"] == 3
    assert ("photos", "primary → third", True) in by_pair
    assert "line 1" in served.ask("POST", f"{path}/check", {"text": "["})[1]["error"]
    warned = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "nowhere"}]}
    warnings = served.ask("POST", f"{path}/check", {"text": json.dumps(warned)})[1]["warnings"]
    assert warnings[0].startswith("unknown-store: line 1, column 22: defaultPolicies: no store 'nowhere'")
    assert served.ask("GET", path)[1] == before


def test_a_finding_is_repaired_and_a_held_plan_approved(copied: Callable[[], Path]) -> None:
    with serving(copied()) as served:
        item = {"space": "photos", "content_id": DAMAGED}
        plan = served.ask("POST", f"{API}/integrity/repair/plan", item)[1]
        assert plan["good"] in ("primary", "third") and plan["actions"][0].startswith("second")
        repaired = served.ask("POST", f"{API}/integrity/repair", {**item, "reason": "drill"})[1]
        assert [(event["store"], event["healed"]) for event in repaired["events"]] == [("second", True)]
        assert served.ask("POST", f"{API}/integrity/holds/1/approve", {"reason": "meant so"})[1]["approved_at"]
        assert served.ask("POST", f"{API}/integrity/holds/1/approve", {"reason": "again"})[0] == 404


def test_a_proof_is_made_and_checked_and_a_changed_one_is_not_believed(served: Served) -> None:
    status, proof, headers = served.ask("GET", f"{API}/proofs/weather/7")
    assert status == 200 and "proof-weather-7.json" in headers["content-disposition"]
    text = json.dumps(proof, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    outcome = served.ask("POST", f"{API}/proofs/verify", {"proof": text})[1]
    assert outcome["holds"] and outcome["is_our_head"] and not outcome["pinned"]
    assert (outcome["version"], outcome["ledger_head"], outcome["checkpoint"]["signed_by"]) == (2, None, [])
    pinned = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "ledger_head": outcome["entry_hash"]})[1]
    assert pinned["holds"] and pinned["pinned"] and pinned["checkpoint"] is None
    (key, _), *_ = LedgerKeys(served.folder / "keys", "anchors", SystemClock()).signing_until()
    trusted = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "key": str(key)})[1]
    assert trusted["pinned"] and trusted["checkpoint"]["signed_by"] == [str(key)]
    witness = TestWitness("witness.example/one")
    lines = f"log {key}\nwitness one {witness.key}\nquorum "
    by_policy = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "policy": f"{lines}none\n"})[1]
    assert by_policy["pinned"] and by_policy["checkpoint"]["signed_by"] == [str(key)]
    too_few = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "policy": f"{lines}one\n"})[1]
    assert (too_few["holds"], "too few witnesses" in too_few["reason"]) == (False, True)
    for policy, words in (("quorum none\n", "names no ledger"), ("log x\n", "line 1 of the trust policy")):
        status, refused, _ = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "policy": policy})
        assert (status, words in refused["message"]) == (400, True)
    status, refused, _ = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "key": "nonsense"})
    assert (status, "is invalid: expected" in refused["message"]) == (400, True)
    key_of_witness = str(VerifierKey(key.name, COSIGNATURE, key.public))
    status, refused, _ = served.ask("POST", f"{API}/proofs/verify", {"proof": text, "key": key_of_witness})
    assert (status, "is the key of a witness" in refused["message"]) == (400, True)
    changed = text.replace('"id":7', '"id":8')
    assert not served.ask("POST", f"{API}/proofs/verify", {"proof": changed})[1]["holds"]
    assert served.ask("GET", f"{API}/proofs/weather/80000")[0] == 404
    for path in ("proofs/wether/7", "proofs/wether/7/copies", "proofs/wether/7/tlog"):
        status, unknown, _ = served.ask("GET", f"{API}/{path}")
        assert (status, unknown["code"]) == (404, "not_found")
        assert "there is no log 'wether'" in unknown["message"] and "millstream log list" in unknown["message"]


def test_the_part_of_a_proof_about_the_ledger_is_a_proof_file(served: Served) -> None:
    status, data, headers = served.ask("GET", f"{API}/proofs/weather/7/tlog")
    assert status == 200 and "proof-weather-7.tlog-proof" in headers["content-disposition"]
    entry = served.ask("GET", f"{API}/proofs/weather/7")[1]["entry"]
    (key, _), *_ = LedgerKeys(served.folder / "keys", "anchors", SystemClock()).signing_until()
    line = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()
    assert verify_tlog_proof(data.encode(), leaf_hash(line), trusting([key])).signed_by == (str(key),)


def test_settings_say_where_they_come_from_and_read_as_they_are_written(served: Served) -> None:
    rows = {row["setting"]: row for row in served.ask("GET", f"{API}/system/settings")[1]["items"]}
    assert (rows["batching.window"]["value"], rows["batching.window"]["origin"]) == ("30 min", "default")
    assert rows["stores.second.url"]["origin"].endswith("millstream.toml")


def test_anchors_files_and_identifiers_can_be_read(served: Served) -> None:
    anchor = served.ask("GET", f"{API}/anchors/2")[1]
    assert anchor["found"]["batches"] == 20 and anchor["manifest"]["count"] == 20
    status, _, headers = served.ask("GET", f"{API}/files/{anchor['manifest']['files'][0]['uri']}")
    assert status == 200 and headers["x-content-type-options"] == "nosniff"
    assert served.ask("GET", f"{API}/files/..%2F..%2Fnode.db")[0] in (400, 404)
    resolution = served.ask("GET", f"{API}/identifiers?did={did()}")[1]["resolution"]
    assert resolution["didDocument"]["id"] == did()
    assert served.ask("GET", f"{API}/identifiers?did=did:sidetree:nobody")[0] in (400, 404)


def test_prometheus_gets_figures_and_probes_an_answer(served: Served) -> None:
    status, text, headers = served.ask("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'millstream_queue_dead{queue="duplication-high"} 30' in text
    assert 'millstream_log_last_id{log="weather"}' in text and "millstream_copies_failed 1" in text
    families = re.findall(r"# TYPE (\w+) \w+", text)
    assert len(families) == len(set(families)) == len(re.findall("# HELP", text))
    monitoring = "".join(page.read_text("utf-8") for page in (DESCRIPTION.parents[1] / "monitoring").iterdir())
    in_use = set(re.findall(r"\bmillstream_[a-z_]+", monitoring)) - set(families)
    absent = ("millstream_registry_follow", "millstream_ledger_cosign")  # it follows no registry, has no witnesses
    assert all(name.startswith(absent) for name in in_use)
    assert served.ask("GET", "/healthz")[1] == {"status": "ok"}
    assert served.ask("GET", "/readyz")[1] == {"status": "ready"}


def test_every_route_is_described_and_nothing_else() -> None:
    app: Any = None  # routes are made without asking it anything
    service = {("GET", path) for path in ("/metrics", "/healthz", "/readyz", f"{API}/openapi.json")}
    assert described(describe()) == routed(api_routes(app)) - service


def test_members_that_an_answer_always_has_are_required_in_its_description() -> None:
    schemas = describe()["components"]["schemas"]
    assert schemas["QueueStatus"]["required"] == list(schemas["QueueStatus"]["properties"])
    assert "kind" not in schemas["BatchHeader"]["required"]  # left out of usual batches
    assert set(schemas["LogQuery"]["required"]) == {"log"}


def test_every_operation_has_a_name_a_summary_and_a_role() -> None:
    operations = [operation for path in describe()["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 40
    assert all(operation["summary"].endswith(".") and "role" in operation["description"] for operation in operations)
