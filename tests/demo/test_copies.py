"""The stage that copies: cut off in the midst of its plan, it copies the rest the next time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.core.cid import cid_of
from millstream.demo.progress import PlainProgress
from millstream.demo.runner import DemoRun
from millstream.demo.stages import copies
from millstream.node import Node
from millstream.settings import PRIMARY_URL, Settings, StoreSettings
from millstream.stores import all_entries


class CutOffError(Exception):
    """The run ends here."""


@pytest.mark.parametrize("plans", [0, 1, 2, 3])
def test_a_plan_that_was_cut_off_is_made_whole_by_the_next_run(
    plans: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {name: f"file://{{data}}/stores/{name}" for name in copies.COPIES} | {copies.PRIMARY: PRIMARY_URL}
    stores = {name: StoreSettings(url) for name, url in urls.items()}
    with Node.open(Settings(data=str(tmp_path), stores=stores), create=True) as node:
        demo_run = DemoRun(node, cast(Any, None), tmp_path, PlainProgress())
        for space in copies.SPACES:
            node.stores.providers[copies.PRIMARY].create_space(space)
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
