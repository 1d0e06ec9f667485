"""What vanished from a source may have been deleted there: a repair does not bring it back by itself."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.mill.item_ref import ItemRef
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import LocalStore

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def call(data: Path, *arguments: str) -> tuple[int, str]:
        capsysbinary.readouterr()
        code = run([*arguments, "--data", str(data)])
        return code, capsysbinary.readouterr().out.decode()

    return call


def findings(text: str) -> list[tuple[str, str]]:
    return [(one["content_id"], one["row"]) for line in text.splitlines() for one in json.loads(line)["findings"]]


@pytest.mark.parametrize("audited", [False, True])
def test_the_queue_of_repairs_puts_it_back_only_where_the_audit_log_says_that_it_must_be_there(
    three_stores: Path, command: Run, audited: bool
) -> None:
    if audited:
        settings = three_stores / "millstream.toml"
        settings.write_text(settings.read_text().replace('"\n', '"\naudited = true\n'))
    with Node.open(load_settings({"data": str(three_stores)}, config=None)[0]) as node:
        node.stores.providers["one"].create_space("s")
        node.stores.providers["one"].put("s", "a", io.BytesIO(b"original"))
    assert command(three_stores, "mill", "audit")[0] == command(three_stores, "mill", "duplicate")[0] == 0
    path = LocalStore(three_stores.parent / "one").path_of("s", "a")
    path.unlink()
    code, text = command(three_stores, "mill", "check", "--store", "one", "--json")
    assert (code, findings(text)) == (1, [("a", "B18")])
    code, text = command(three_stores, "mill", "repair")
    assert (code, path.exists()) == ((0, True) if audited else (1, False))
    if not audited:
        assert "if it was deleted on purpose, record the deletion (`millstream mill forget`)" in text
        assert command(three_stores, "mill", "repair", "s", "a", "--restore-source")[0] == 0
        assert path.read_bytes() == b"original"


def test_without_a_policy_no_store_is_a_source_and_it_is_put_back(world: Any) -> None:
    for store in "123":
        world.put(ItemRef(store, "s", "a"))
    world.stores["1"].delete("s", "a")
    result = Repairer(world.providers, world.manifest, RepairLog(world.engine)).repair("s", "a")
    assert (result.repaired, result.refused) == (1, ())


def test_an_item_of_a_protected_folder_is_named_as_vanished_and_is_no_task(tmp_path: Path, command: Run) -> None:
    photos, data = tmp_path / "photos", tmp_path / "node"
    photos.mkdir()
    for name in ("a", "b", "c"):
        (photos / name).write_bytes(name.encode())
    assert command(data, "protect", str(photos), "--to", str(tmp_path / "copy"))[0] == 0
    (photos / "a").unlink()
    (photos / "b").write_bytes(b"edited")
    code, text = command(data, "mill", "check", "--store", "photos", "--json")
    assert (code, findings(text)) == (1, [("a", "B30")])
    with Node.open(load_settings({"data": str(data)}, config=None)[0]) as node:
        assert [node.queues.open(name).depth().open for name in (QueueName.REPAIR, QueueName.BIT_ERROR)] == [0, 0]
        plan = node.mill.repairs.repairer.plan("photos", "a", restore_source=True)
        assert "the item vanished from there, where nothing is ever written" in plan.reasons[0]
    assert not (photos / "a").exists()


def test_an_item_that_was_left_out_on_purpose_is_neither_missing_nor_vanished(tmp_path: Path, command: Run) -> None:
    photos, data = tmp_path / "photos", tmp_path / "node"
    photos.mkdir()
    for name in ("a.txt", "b.iso"):
        (photos / name).write_bytes(name.encode())
    protect = (data, "protect", str(photos), "--to", str(tmp_path / "copy"))
    assert command(*protect)[0] == command(*protect, "--exclude", "*.iso")[0] == 0
    code, text = command(data, "mill", "check", "--store", "photos", "--json")
    (report,) = map(json.loads, text.splitlines())
    assert (code, report["findings"], report["kinds"]) == (0, [], {"B1 intact": 1, "B31 left-out": 1})
    assert command(data, "status")[0] == 0
    with Node.open(load_settings({"data": str(data)}, config=None)[0]) as node:
        assert node.queues.open(QueueName.REPAIR).depth().open == 0
