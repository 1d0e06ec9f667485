"""The page of the members of a node, and the same for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from in_process import AskedInProcess

from millstream.core.clock import VirtualClock
from millstream.node import Node
from millstream.node.databases import DatabasesPart
from millstream.node.members.members_status import WORK
from millstream.node.members.membership import Membership
from millstream.node.members.node_members import NodeMembers
from millstream.settings import Settings


class Desk:
    """A node that members serve, as one of them shows it; its database is a file here."""

    def __init__(self, node: Node, clock: VirtualClock) -> None:
        self.node, self.clock = node, clock
        self.console = AskedInProcess(node)

    def member(self, *roles: str) -> Membership:
        """A member that offers *roles* and owns each that is free."""
        membership = self.node.databases.members.membership(
            {role: role for role in roles}, {"console": "http://127.0.0.1:8460"}
        )
        membership.join()
        for role in roles:
            if (lease := membership.leases.acquire(role, acquired=lambda now: now)) is not None:
                membership.leases.write(lease, unowned_since=lambda _: None)
                membership.keep(role)
        return membership


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(NodeMembers, "is_shared", True)
    monkeypatch.setattr(DatabasesPart, "_server", property(lambda databases: databases.own))
    clock = VirtualClock()
    with Node.open(Settings(data=str(tmp_path)), clock, create=True) as node:
        yield Desk(node, clock)


def test_the_page_shows_who_serves_the_node_who_ended_and_which_role_nobody_owns(desk: Desk) -> None:
    one, lost = desk.member("upkeep", "batching a"), desk.member("producers")
    desk.clock.advance(20)
    page = desk.console.page("/members")
    assert "No member serves the node" in page and page.count(">lost<") == 2
    two = desk.member("upkeep", "producers")
    lost.end_lost()
    page = desk.console.page("/members")
    serving, unowned, ended = page.split('<section class="card"')[1:4]
    assert two.id in serving and "http://127.0.0.1:8460" in serving and ">alive<" in serving
    assert f"{two.details.pid} on {two.details.host}" in serving and "producers" in serving
    assert "Each role that members offer has an owner" in unowned, "nobody offers what the others batched"
    assert one.id in ended and lost.id in ended and two.id not in ended
    three = desk.member()
    three.details = two.details
    two.table.leave(two.id)
    three.renew()
    unowned = desk.console.page("/members").split('<section class="card"')[2]
    assert "<td>producers</td>" in unowned and "<td>upkeep</td>" in unowned and three.id in unowned


def test_programs_get_the_same(desk: Desk) -> None:
    one = desk.member("upkeep")
    one.details = desk.node.databases.members.membership({"upkeep": "", "producers": ""}, {}).details
    one.renew()
    (row,) = desk.console.api("/members")["items"]
    assert (row["id"], row["state"], row["offers"]) == (one.id, "alive", ["producers", "upkeep"])
    assert row["owns"] == {"upkeep": desk.clock.now()} and row["seen"] == desk.clock.now()
    assert desk.console.api("/members/unowned-roles")["items"] == [
        {"role": "producers", "since": desk.clock.now(), "offered_by": [one.id], "claimed_by": None}
    ]
    status, text = desk.console.ask("GET", "/api/v1/members?format=csv")
    assert status == 200 and text.startswith("id,state,host,pid,version,") and one.id in text
    assert desk.console.ask("POST", "/api/v1/members/nobody/drain", {})[0] == 404


def test_metrics_count_the_members_by_state_and_the_roles_without_an_owner(desk: Desk) -> None:
    desk.member("upkeep")
    desk.clock.advance(20)
    desk.member("upkeep", "producers").details = desk.node.databases.members.membership({}, {}).details
    text = desk.console.ask("GET", "/metrics")[1]
    counts = dict(re.findall(r'^millstream_members{state="(.+)"} (.+)$', text, re.MULTILINE))
    assert {state for state, count in counts.items() if float(count) == 1} == {"alive", "lost"}
    assert float(re.search(r"^millstream_members_unowned_roles (.+)$", text, re.MULTILINE)[1]) == 0
    assert re.search(r'^millstream_verdict_issues{kind="member-lost"} 1', text, re.MULTILINE)


def test_an_operator_drains_a_member_and_lets_it_take_roles_again(desk: Desk) -> None:
    member = desk.member("upkeep").id
    asked = desk.console.form(f"/members/{member}/drain")
    assert "Drain?" in asked and not desk.node.databases.members.table.find(member).draining
    done = desk.console.form(f"/members/{member}/drain", confirmed="yes")
    assert f"{member} gives its roles up" in done and ">draining<" in done and "Cancel drain…" in done
    asked = desk.console.form(f"/members/{member}/cancel-drain")
    assert "Cancel drain?" in asked
    done = desk.console.form(f"/members/{member}/cancel-drain", confirmed="yes")
    assert ">alive<" in done
    events = [(one.action, one.target, one.user) for one in desk.console.app.operator_log.last(2)]
    assert events == [(action, f"member {member}", "local") for action in ("cancel drain", "drain")]


def test_a_process_of_mill_work_is_shown_as_one_and_cannot_be_drained(desk: Desk) -> None:
    worker = desk.member()
    worker.details = msgspec.structs.replace(worker.details, command=WORK)
    worker.renew()
    page = desk.console.page("/members")
    assert '<span class="soft">mill work</span>' in page and "Drain…" not in page
    status, text = desk.console.ask("POST", f"/api/v1/members/{worker.id}/drain", {})
    assert status == 400 and "send SIGTERM to process" in json.loads(text)["message"]
    (row,) = desk.console.api("/members")["items"]
    assert (row["command"], row["state"]) == ("mill work", "alive")


def test_a_node_whose_database_is_a_file_says_that_it_has_no_members(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        console = AskedInProcess(node)
        assert "The database of this node is a file" in console.page("/members")
        assert console.api("/members")["items"] == console.api("/members/unowned-roles")["items"] == []
        status, text = console.ask("POST", "/api/v1/members/x/drain", {})
        assert status == 400 and "node.database" in json.loads(text)["message"]
