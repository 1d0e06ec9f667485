"""The default limits of batches: a new node has them, and a node that batched without them goes on as it began."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.batching import ConfigError
from millstream.batching.batch_config import BatchConfig
from millstream.batching.default_limits import LIMITS_OF_NEW_NODES, NO_LIMITS
from millstream.batching.settings import BatchingSettings
from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.settings.node_settings import NodeSettings
from support.server_databases import new_database

LIMITED, UNLIMITED = "max_count=5000 max_bytes=1000000", "mode=order-free"


def rules_text(settings: Settings) -> str:
    with Node.open(settings, create=True) as node:
        return node.batching.rules.default.rules_text


def test_a_new_node_has_limits_and_keeps_them(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    assert rules_text(settings).endswith(LIMITED)
    assert rules_text(settings).endswith(LIMITED)


def test_a_node_that_was_created_without_limits_has_none(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with Node.open(settings, create=True) as node:
        node.databases.prepare()
    (tmp_path / "batching" / "limits.json").unlink()  # which builds before these limits did not write
    assert rules_text(settings).endswith(UNLIMITED)


def test_a_node_that_has_states_of_batching_is_not_new(tmp_path: Path) -> None:
    (tmp_path / "batching").mkdir()
    (tmp_path / "batching" / "out.state").write_bytes(b"")
    assert rules_text(Settings(data=str(tmp_path))).endswith(UNLIMITED)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_count": 0, "max_bytes": 0}, UNLIMITED),
        ({"max_count": 7}, "max_count=7 max_bytes=1000000"),
        ({"max_bytes": 7}, "max_count=5000 max_bytes=7"),
        ({"max_count": 0}, "mode=order-free max_bytes=1000000"),
    ],
)
def test_what_the_settings_say_goes_before_the_default_limits(given: dict[str, int], expected: str) -> None:
    rules = BatchingSettings(**given).rules_with(LIMITS_OF_NEW_NODES)  # type: ignore[arg-type]
    assert rules.default.rules_text.endswith(expected)


def test_other_rules_of_a_source_have_the_same_limits_unless_they_say_otherwise() -> None:
    tables = ({"source": "pump", "window": 5}, {"source": "fan", "max_count": 0})
    rules = BatchingSettings(override=tables).rules_with(LIMITS_OF_NEW_NODES)
    texts = [override.config.rules_text for override in rules.overrides]
    assert texts[0].endswith(LIMITED)
    assert texts[1].endswith("mode=order-free max_bytes=1000000")


def test_zero_is_no_limit_and_is_no_part_of_the_batch_id() -> None:
    assert BatchConfig(5, 5, max_count=0, max_bytes=0).rules_text == BatchConfig(5, 5).rules_text
    assert BatchingSettings().rules == BatchingSettings().rules_with(NO_LIMITS)


def test_a_damaged_record_of_the_limits_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    rules_text(settings)
    (tmp_path / "batching" / "limits.json").write_text('{"max_count": "many"}')
    with pytest.raises(ConfigError, match=r"limits\.json is not valid.*restore these limits"):
        rules_text(settings)


def test_a_busy_source_is_anchored_whole(tmp_path: Path) -> None:
    """30,000 messages of one source in one window are more than a batch file takes."""
    settings, clock = Settings(data=str(tmp_path)), VirtualClock()
    with Node.open(settings, clock, create=True) as node, node.logs.store.log(LogSpec("in")).writer() as writer:
        now = clock.now()
        body = json.dumps({"temperature": 21.5, "humidity": 40, "station": "north"}).encode()
        writer.append([Message(body, f"reading {number}", "pump", now + number) for number in range(30_000)])
        service = node.batching.service("in", "out")
        while service.step():
            pass
        clock.advance(3 * settings.batching.window)
        writer.append([Message(b"", "", "clock", clock.now())])
        while service.step():
            pass
        node.anchoring.feed("in", "out").step(force=True)
        totals = node.anchoring.observer.index.totals()
    assert (totals.batches, totals.messages) == (6, 30_000)


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_members_that_begin_together_on_a_server_have_the_same_limits(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with new_database(str(request.getfixturevalue(server)), "limits") as url:
        members = [Settings(data=str(tmp_path / name), node=NodeSettings(database=url)) for name in "abc"]
        with ThreadPoolExecutor() as pool:
            texts = list(pool.map(rules_text, members))
    assert all(text.endswith(LIMITED) for text in texts)


@pytest.mark.served
@pytest.mark.parametrize("is_old", [True, False])
def test_a_node_that_is_moved_to_a_server_keeps_its_limits(
    is_old: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = Settings(data=str(tmp_path))
    before = rules_text(settings)
    if is_old:
        (tmp_path / "batching" / "limits.json").unlink()
        before = rules_text(settings)
    with new_database(str(request.getfixturevalue("postgresql")), "limits") as url:
        assert run(["node", "move", url, "--data", str(tmp_path)]) == 0
        moved = Settings(data=str(tmp_path), node=NodeSettings(database=url))
        assert rules_text(moved) == before
        assert before.endswith(UNLIMITED if is_old else LIMITED)
