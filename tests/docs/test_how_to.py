"""The how-to pages, typed in as they stand, work and print what they say, on servers that are real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pages import follow_page, steps

from millstream.batching.ticks import idle_log_ticker
from millstream.cli.main import run
from millstream.core.cid import cid_of
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.ports import free_ports
from millstream.testing.s3 import S3Server
from millstream.testing.swift import ENVIRONMENT
from support.published_ledger import served
from support.timestamp_authority import TimestampAuthority, TimestampRoot

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]  # some pages are dozens of commands, each a process

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
DATABASE = "mysql://millstream@db.example/{}?password_file=/etc/millstream/db"
BROKER = "amqp://millstream@mq.example:5672/%2F?password_file=/etc/millstream/mq"
SETTINGS = """
[batching]
window = "1s"
max_delay = "500ms"
[stores.main]
url = "file://{data}/stores/main?mount=cas:cas://{data}/cas"
[stores.copy]
url = "file://{data}/stores/copy"
"""
EMBEDDED = ["backup", "upgrade", "recover"]
STARTED_ANEW = "backup"
"""The page whose commands each start a program, as a user's do; those of the others are forked."""
ELSEWHERE = {"index", "run-a-node", "several-nodes", "spark-cluster", "spark-data-source", "witnesses"}
"""Pages whose parts are tried by tests of their own: roles, members, log lines, traces, a cluster, and a witness."""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a node in ``millstream-data``: a log that is anchored, three letters, and a copy of everything."""
    folder = tmp_path_factory.mktemp("how-to")
    data = folder / "millstream-data"
    data.mkdir()
    (data / "millstream.toml").write_text(SETTINGS, "utf-8")
    with Node.open(load_settings({"data": str(data)}, environment={})[0], create=True) as made:
        log = made.logs.store.log(LogSpec("readings"))
        with log.writer() as writer:
            writer.append([Message(b"%d l/s" % n, "flow", f"pump-{n}") for n in range(3)])
        service = made.batching.service("readings", "readings.batches", ticks=idle_log_ticker(log, made.clock))
        feed = made.anchoring.feed("readings", "readings.batches")

        def all_anchored() -> bool:
            feed.step(force=True)
            return feed.total.messages == 3

        service.run(all_anchored)
        _ = made.stores.providers
    (folder / "letters").mkdir()
    for n in (1, 2, 3):
        (folder / "letters" / f"letter-{n}.txt").write_text(f"This is letter {n}.\n", "utf-8")
    policy = folder / "policy.json"
    policy.write_text('{"defaultPolicies": [{"srcStoreId": "main", "destStoreId": "copy"}]}', "utf-8")
    for line in (
        ["store", "put", "main", "letters", str(folder / "letters"), "--create"],
        ["mill", "policy", "save", "local", str(policy)],
        ["mill", "duplicate"],
    ):
        assert run([*line, "--data", str(data)]) == 0
    return folder


@pytest.fixture
def folder(node: Path, tmp_path: Path) -> Path:
    """A copy of the node, to be broken."""
    subprocess.run(["cp", "-r", f"{node}/.", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_operator_can_follow_the_page(name: str, folder: Path) -> None:
    follow_page(HOW_TO / f"{name}.md", folder, forked=name != STARTED_ANEW)


def test_an_operator_keeps_logs_in_a_database(folder: Path, mariadb: str) -> None:
    follow_page(HOW_TO / "mariadb.md", folder, {DATABASE.format("logs"): f"{mariadb}how_to_{os.getpid()}"})


def test_an_operator_keeps_the_tables_of_a_node_on_a_server(folder: Path, mariadb: str) -> None:
    follow_page(HOW_TO / "database-server.md", folder, {DATABASE.format("node"): f"{mariadb}how_to_node_{os.getpid()}"})


def test_an_operator_shares_work_over_rabbitmq(folder: Path, mariadb: str, rabbitmq: str) -> None:
    told = {BROKER: rabbitmq, DATABASE.format("queues"): f"{mariadb}how_to_queues_{os.getpid()}"}
    follow_page(HOW_TO / "rabbitmq.md", folder, told)


def test_an_operator_runs_a_broker(folder: Path) -> None:
    (port,) = free_ports(1)
    follow_page(HOW_TO / "rocketmq.md", folder, {"127.0.0.1:8081": f"127.0.0.1:{port}"})


def test_an_operator_keeps_copies_on_s3(folder: Path, swift: S3Server) -> None:
    key, secret = ENVIRONMENT.values()
    url = urlsplit(swift.new_url())
    told = {
        "KEY_ID=key": f"KEY_ID={key}",
        "ACCESS_KEY=secret": f"ACCESS_KEY={secret}",
        "s3://bucket/": f"s3://{url.netloc}{url.path}",
        "https://s3.example": re.search(r"endpoint=([^&]+)", url.query)[1],
    }
    follow_page(HOW_TO / "s3.md", folder, told)


def test_an_operator_keeps_the_keys_of_the_ledgers(tmp_path: Path) -> None:
    follow_page(HOW_TO / "ledger-keys.md", tmp_path)


def test_an_operator_has_the_ledgers_time_stamped(folder: Path) -> None:
    root = TimestampRoot(folder / "authorities")
    shutil.copy(root.path, folder / "authorities.pem")
    with TimestampAuthority(root, "One TSA") as one, TimestampAuthority(root, "Two TSA") as two:
        told = {
            "https://tsa.example.org/tsr": one.url,
            "https://tsa.example.com/tsr": two.url,
            "https://tsa.example.…": "http://127.0.0.1:…",
            "/etc/millstream/authorities.pem": str(folder / "authorities.pem"),
        }
        follow_page(HOW_TO / "timestamps.md", folder, told)


def test_anyone_monitors_the_ledger_of_a_node(folder: Path) -> None:
    with served(folder / "millstream-data") as url:
        told = {"https://example.org/ledger/": f"{url}/ledger-tiles/", "https://example.org/files": f"{url}/cas"}
        follow_page(HOW_TO / "monitor-a-ledger.md", folder, told)


def test_a_newcomer_protects_a_folder(tmp_path: Path) -> None:
    follow_page(HOW_TO / "protect.md", tmp_path)


def test_a_newcomer_restores_what_is_protected(tmp_path: Path) -> None:
    follow_page(HOW_TO / "restore.md", tmp_path)


def test_the_folder_of_who_reads_the_readme_alone_is_protected(tmp_path: Path) -> None:
    readme = (HOW_TO.parents[1] / "README.md").read_text("utf-8")
    (tmp_path / "section.md").write_text(readme.partition("## Protect a folder")[2].partition("\n## ")[0], "utf-8")
    follow_page(tmp_path / "section.md", tmp_path)
    assert (tmp_path / "disk2" / "photos" / "b.jpg").read_bytes() == b"two\n"


def test_a_name_of_the_cas_is_made_by_other_tools(tmp_path: Path) -> None:
    follow_page(HOW_TO.parent / "formats" / "cas.md", tmp_path)
    assert (tmp_path / "name").read_text("utf-8").strip() == cid_of(b"grain")


def test_every_page_is_followed_or_tried_elsewhere() -> None:
    ledgers = {"ledger-keys", "timestamps", "monitor-a-ledger"}
    own = {*ledgers, "protect", "restore", "mariadb", "database-server", "rabbitmq", "rocketmq", "s3"}
    assert {path.stem for path in HOW_TO.glob("*.md")} == {*EMBEDDED, *ELSEWHERE, *own}
    assert all(steps((HOW_TO / f"{name}.md").read_text("utf-8")) for name in (*EMBEDDED, *own))
