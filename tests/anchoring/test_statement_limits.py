"""Anchors on a server whose statements are small: fewer messages together, and none that is stuck."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from millstream.anchoring import CutLimits
from millstream.anchoring.cut_manifest import MAX_CONTENT_BYTES, MAX_REJECTS
from millstream.core.database_server import open_server
from millstream.node import Node
from millstream.settings import AnchoringSettings, Settings, load_settings
from millstream.testing import services
from millstream.testing.batches import CONFIG, make_batch, make_rejects
from suite.missing import started

MESSAGES, REJECTS, STEP = 60_000, 30_000, 1_000


def test_limits_leave_room_for_messages_and_rejects_in_a_statement() -> None:
    assert CutLimits().within(1 << 30) == CutLimits()
    small = CutLimits(file_bytes=1000).within(16 << 20)
    assert (small.batches, small.file_bytes) == (CutLimits().batches, 1000)
    assert small.cut_bytes // 71 * 20 + small.rejects * 40 <= 16 << 20
    assert small.cut_bytes < MAX_CONTENT_BYTES and small.rejects < MAX_REJECTS
    least = CutLimits().within(0)
    assert (least.cut_bytes, least.rejects) == (1, 1)


def test_the_settings_have_the_limits_of_the_format() -> None:
    settings, limits = AnchoringSettings(), CutLimits()
    assert (settings.max_batches, settings.file_bytes) == (limits.batches, limits.file_bytes)
    too_many = {"anchoring": {"max_batches": limits.batches + 1}}, {"anchoring": {"file_bytes": limits.file_bytes + 1}}
    for values in too_many:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(values, Settings)


@pytest.mark.served
def test_a_backlog_is_anchored_where_the_server_takes_small_statements_only(tmp_path: Path) -> None:
    with started(lambda: services.private("mariadb"), driver="pymysql", extra="mysql") as server:
        engine = open_server(server.url + "mysql")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("SET GLOBAL max_allowed_packet = 1048576"))
        engine.dispose()
        database = {"MILLSTREAM_NODE__DATABASE": server.url + "node"}
        settings, _ = load_settings({"data": str(tmp_path)}, environment=database)
        with Node.open(settings, create=True) as node:
            writer = node.anchoring.batch_writer
            for first in range(0, MESSAGES, STEP):
                ids = range(first + 1, first + STEP + 1)
                rejects = make_rejects(range(MESSAGES + first // 2 + 1, MESSAGES + (first + STEP) // 2 + 1))
                writer.add("weather", [make_batch(ids, hour=first // STEP)], rejects, config=CONFIG)
            entries = writer.cut(force=True)
            counts = [int(entry.anchor_string.split(".")[0]) for entry in entries]
            assert sum(counts) == MESSAGES // STEP and len(counts) > 1
            assert node.anchoring.journal.totals().waiting_rejects == REJECTS - sum(
                node.anchoring.observer.index.anchor(entry.number).rejects for entry in entries
            )
