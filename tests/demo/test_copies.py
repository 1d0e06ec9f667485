"""The stage that copies: ahead of its turn, cut off in the midst of its plan, and at the end of a run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.core.cid import cid_of
from millstream.demo.progress import PlainProgress
from millstream.demo.runner import DemoRun
from millstream.demo.stages import copies
from millstream.mill.policies.policy import Pair, Policy, encode_policy
from millstream.mill.policies.repository import PolicyRepository
from millstream.mill.policies.saving import history, save_policy
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import PRIMARY_URL, Settings, StoreSettings
from millstream.stores import all_entries


class CutOffError(Exception):
    """The run ends here."""


@pytest.fixture
def demo_run(tmp_path: Path) -> Iterator[DemoRun]:
    """A run whose first store has the spaces that are copied, without items."""
    urls = {name: f"file://{{data}}/stores/{name}" for name in copies.COPIES} | {copies.PRIMARY: PRIMARY_URL}
    stores = {name: StoreSettings(url) for name, url in urls.items()}
    with Node.open(Settings(data=str(tmp_path), stores=stores), create=True) as node:
        for space in copies.SPACES:
            node.stores.providers[copies.PRIMARY].create_space(space)
        yield DemoRun(node, cast(Any, None), tmp_path, PlainProgress())


@pytest.mark.parametrize("plans", [0, 1, 2, 3])
def test_a_plan_that_was_cut_off_is_made_whole_by_the_next_run(
    plans: int, demo_run: DemoRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = demo_run.node
    for space in copies.SPACES:
        node.stores.providers[copies.PRIMARY].put(space, cid_of(space.encode()), io.BytesIO(space.encode()))
    plan, made = copies.plan_space_duplication, iter(range(plans))

    def cut_off(*arguments: Any) -> Any:
        if next(made, None) is None:
            raise CutOffError
        return plan(*arguments)

    monkeypatch.setattr(copies, "plan_space_duplication", cut_off)
    with pytest.raises(CutOffError):
        copies.duplicate_spaces(demo_run)
    monkeypatch.setattr(copies, "plan_space_duplication", plan)
    assert copies.duplicate_spaces(demo_run).counts == {"copies": 4}
    for store in copies.COPIES:
        found = {space: list(all_entries(node.stores.providers[store], space)) for space in copies.SPACES}
        assert {space: len(entries) for space, entries in found.items()} == dict.fromkeys(copies.SPACES, 1)


def test_files_are_copied_before_anything_is_anchored_and_once(demo_run: DemoRun) -> None:
    node = demo_run.node
    store = node.stores.providers[copies.PRIMARY]
    store.put(copies.FILES_SPACE, "os.py", io.BytesIO(b"import sys"))
    copies.copy_files(demo_run)
    found = [list(all_entries(node.stores.providers[name], copies.FILES_SPACE)) for name in copies.COPIES]
    assert [[entry.content_id for entry in entries] for entries in found] == [["os.py"], ["os.py"]]
    anchored = cid_of(b"anchored")
    store.put(copies.SPACES[0], anchored, io.BytesIO(b"anchored"))
    copies.ingest_files(demo_run)
    assert copies.duplicate_spaces(demo_run).counts == {"copies": 4}
    assert node.queues.open(QueueName.DUPLICATION_LOW).depth().open == 0


def test_copies_that_others_hold_do_not_delay_the_end_of_a_run(demo_run: DemoRun) -> None:
    node = demo_run.node
    store = node.stores.providers[copies.PRIMARY]
    store.put(copies.FILES_SPACE, "os.py", io.BytesIO(b"import sys"))
    queue = node.queues.open(QueueName.DUPLICATION_LOW)
    queue.put([b"a task of a process that was killed"])
    (held,) = queue.lease(1, visibility=3600)
    demo_run.begin("duplicate", lambda: copies.copy_files(demo_run))
    demo_run.close()
    demo_run.await_lead("duplicate")
    assert queue.depth().leased == 1
    queue.nack(held)


def test_the_policy_is_saved_once_and_leaves_the_policies_of_others_in_force(demo_run: DemoRun) -> None:
    place, account = demo_run.node.policies.location, demo_run.node.settings.mill.account
    photos = (Pair("primary", "second"),)
    save_policy(place, account, encode_policy(Policy(account, {"photos": photos})))
    save_policy(place, "other", encode_policy(Policy("other")))
    for _ in range(2):
        copies.copy_files(demo_run)
    policies = PolicyRepository(place).load().by_account
    assert {*policies} == {account, "other"}
    assert policies[account].lookup("photos") == photos
    assert [pair.destination for pair in policies[account].lookup(copies.FILES_SPACE)] == ["second", "third"]
    assert len(history(place, account)) == 2
