"""Which differences between the settings of two members count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from millstream.anchoring.settings import AnchoringSettings
from millstream.node.members.members_status import Member, MemberDetails, MembersStatus
from millstream.node.members.shared_settings import shared_settings
from millstream.queue.settings import QueueSettings
from millstream.settings import Settings, load_settings
from millstream.status.verdict.judge_members import SETTINGS_CHANGE, settings_issues

SETTINGS = """
[node]
database = "postgresql://a:secret@db/node"
[log]
store = "postgresql://a:secret@db/logs"
[anchoring]
cas = "s3://records/cas?endpoint=https://s3.example&credentials=A"
[stores.one]
url = "s3://records/one?endpoint=https://s3.example"
[stores.two]
url = "file:///mnt/two"
[mill]
policies = "one:policies"
"""


def differences(folder: Path, before: str, after: str) -> Sequence[str]:
    """The parts that differ from :data:`SETTINGS` where *before* is replaced by *after*."""
    assert before in SETTINGS
    found = []
    for text in (SETTINGS, SETTINGS.replace(before, after)):
        (folder / "millstream.toml").write_text(text)
        found.append(shared_settings(load_settings({"data": str(folder)}, environment={})[0]))
    return [part for part, checksum in found[0].items() if found[1][part] != checksum]


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("a:secret@db/logs", "b:other@10.0.0.1:5433/logs?password_file=/p", []),
        ("https://s3.example&credentials=A", "https://s3.internal&profile=B", []),
        ("file:///mnt/two", "file:///srv/two", []),
        ("[node]", '[console]\nsession_hours = 1\n[logging]\nlevel = "debug"\n[node]', []),
        ("@db/logs", "@db/log", ["log.store"]),
        ("s3://records/cas", "s3://record/cas", ["anchoring.cas"]),
        ("s3://records/one", "s3://records/on", ["stores"]),
        ('[stores.two]\nurl = "file:///mnt/two"\n', "", ["stores"]),
        ("file:///mnt/two", 'file:///mnt/two"\naudited = true\nmost_bytes = "1GB', ["stores"]),
        ("one:policies", "two:policies", ["mill"]),
        ("one:policies", "typo:policies", ["mill"]),
        ("[node]", '[registry]\ndatabase = "postgresql://a@db/dids"\n[node]', ["registry.database"]),
        ("[node]", '[registry]\nmethod = "did:web"\n[node]', ["registry"]),
        ("[node]", "[registry]\nop_queue_pool = 2\n[node]", []),
        ("[node]", '[queue]\nbroker = "amqp://a:b@broker/v"\n[node]', ["queue.broker"]),
        ("[node]", "[queue]\npublisher_pool_size = 2\n[node]", []),
        ("[anchoring]", "[anchoring]\nmax_batches = 5", ["anchoring"]),
        ("[anchoring]", '[anchoring]\nwitness_policy = "/etc/policy"', ["anchoring"]),
        ("[node]", '[batching]\nwindow = "1h"\n[node]', ["batching"]),
        ("[node]", '[[log.rules]]\nlog = "a*"\nmax_age = "1d"\n[node]', ["log.rules"]),
    ],
)
def test_members_differ_in_what_is_done_and_not_in_how_servers_are_reached(
    tmp_path: Path, before: str, after: str, parts: Sequence[str]
) -> None:
    assert differences(tmp_path, before, after) == parts


def test_hosts_may_reach_a_broker_at_different_addresses_and_have_files_at_different_paths() -> None:
    one, two = (
        Settings(
            queue=QueueSettings(broker=f"amqp://{name}@{name}/v"),
            anchoring=AnchoringSettings(witness_policy=f"/{name}/policy"),
        )
        for name in ("a", "b")
    )
    assert shared_settings(one) == shared_settings(two)


def test_the_order_of_settings_does_not_count(tmp_path: Path) -> None:
    before, found = "[node]", list[object]()
    for lines in ('source = "a"\nmax_delay = "5m"', 'max_delay = "5m"\nsource = "a"'):
        (tmp_path / "millstream.toml").write_text(SETTINGS.replace(before, f"[[batching.override]]\n{lines}\n[node]"))
        found.append(shared_settings(load_settings({"data": str(tmp_path)}, environment={})[0]))
    assert found[0] == found[1]


def test_only_members_of_one_version_are_compared() -> None:
    def member(name: str, version: str, **settings: str) -> Member:
        details = MemberDetails(host="h", pid=1, version=version, settings=settings)
        return Member(id=name, since=0, seen=0, until=9, ended=None, draining=False, details=details)

    def what(*members: Member) -> Sequence[str]:
        return [issue.what for issue in settings_issues(MembersStatus(at=1, lease=1, members=members, unowned=()))]

    one, old = member("a", "2", stores="x", batching="y"), member("b", "1", stores="z")
    assert what(one, old, member("c", "2"), member("d", "2", stores="x", batching="y")) == []
    other = member("e", "2", stores="X", batching="y")
    assert what(one, other) == ["members have different settings: stores (a differs from e)"]
    assert what(one, msgspec.structs.replace(other, until=0)) == []  # it is lost


def test_different_settings_are_a_warning_while_members_are_restarted_one_by_one() -> None:
    def member(name: str, since: int, stores: str) -> Member:
        details = MemberDetails(host="h", pid=1, version="1", settings={"stores": stores})
        return Member(id=name, since=since, seen=0, until=10**12, ended=None, draining=False, details=details)

    def found(at: int, *members: Member, lease: int = 1) -> tuple[str, int | None]:
        (issue,) = settings_issues(MembersStatus(at=at, lease=lease, members=members, unowned=()))
        return issue.severity, issue.since

    old, restarted = [member("a", 5, "x"), member("b", 7, "x")], member("c", 100, "y")
    later = member("d", 300, "y")
    end = 100 + SETTINGS_CHANGE
    assert found(end, *old, restarted) == ("warn", 100)
    assert found(end + 1, *old, restarted) == found(end + 1, old[0], later, restarted) == ("bad", 100)
    assert found(end + 1, *old, restarted, lease=SETTINGS_CHANGE) == ("warn", 100)
    assert found(end + 1, *old, later) == ("warn", 300)


def test_members_that_are_lost_and_join_again_differ_since_they_joined_first() -> None:
    def member(name: str, since: int, stores: str, ended: int | None = None) -> Member:
        details = MemberDetails(host="h", pid=1, version="1", process=f"process {name[0]}", settings={"stores": stores})
        return Member(
            id=name, since=since, seen=0, until=10**12, ended=ended, draining=False, details=details, lost=True
        )

    old, lost, again = member("a", 5, "x"), member("b1", 100, "y", ended=200), member("b2", 250, "y")
    at = 100 + SETTINGS_CHANGE + 1
    for members, began in (((old, lost, again), ("bad", 100)), ((old, again), ("warn", 250))):
        (issue,) = settings_issues(MembersStatus(at=at, lease=1, members=members, unowned=()))
        assert (issue.severity, issue.since) == began
