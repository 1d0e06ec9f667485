"""The batching rules of a node that two processes serve are changed while they work, and they are restarted later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serving_nodes import MEMBER_SETTINGS, Serving, open_node, owner_of, soon
from weather_batches import anchored, append, expected, given

from support.commands import run_command
from support.server_databases import new_database

SETTINGS = f"""{MEMBER_SETTINGS}
[serve]
anchor_every = "1s"
[serve.batching]
weather = "weather.batches"
"""


@pytest.mark.served
def test_p5_members_batch_by_changed_rules_without_a_stop_and_after_restarts(tmp_path: Path, postgresql: str) -> None:
    with new_database(postgresql, "node") as database, new_database(postgresql, "logs") as logs:
        settings = SETTINGS.format(database=database, logs=logs, shared=tmp_path / "cas")
        folders = [tmp_path / name for name in ("one", "two", "tests")]
        for folder in folders:
            folder.mkdir()
        _configure(folders, settings)
        with Serving(folders[0]) as one, Serving(folders[1]) as two, open_node(folders[2]) as node:
            append(node, 100)
            soon(lambda: anchored(node) == 100, "the messages anchored")
            _configure(folders, settings.replace('window = "200ms"', 'window = "50ms"\nmax_count = 7'))
            changed = run_command("batch", "rules", "weather.batches", "--change", "--json", "--data", str(folders[2]))
            assert (changed.code, changed.err) == (0, "")
            assert [one["number"] for one in json.loads(changed.out)["rules"]] == [1, 2]
            since = node.batching.rules_of("weather.batches").later[-1].since
            soon(lambda: node.clock.now() > since, "the new rules in force")
            append(node, 100)
            soon(lambda: anchored(node) == 200, "the messages anchored by both rules")
            owner = owner_of(node, "batching weather").details.pid
            first, other = (one, two) if one.process.pid == owner else (two, one)
            other.drain()
            with Serving(folders[1 if other is two else 0]):
                first.process.kill()
                append(node, 100)
                soon(lambda: anchored(node) == 300, "the messages anchored after a restart")
                assert given(node) == expected(node)


def _configure(folders: list[Path], settings: str) -> None:
    for folder in folders:
        (folder / "millstream.toml").write_text(settings, "utf-8")
