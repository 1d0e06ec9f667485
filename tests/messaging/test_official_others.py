"""The official clients of other languages against our broker, where asked for; nothing is fetched otherwise.

``MILLSTREAM_TEST_OFFICIAL_NODE=FOLDER`` and ``MILLSTREAM_TEST_OFFICIAL_JAVA=FOLDER`` ask for them: folders for what npm
and Maven install, which is done where they are empty. Each client is a process of its own, see ``official/``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from millstream.testing.apache_rocketmq import fetch_jars
from millstream.testing.brokers import BrokerProcess

OFFICIAL = Path(__file__).parent / "official"
NODE = os.environ.get("MILLSTREAM_TEST_OFFICIAL_NODE", "")
JAVA = os.environ.get("MILLSTREAM_TEST_OFFICIAL_JAVA", "")
TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "halves": "TRANSACTION", "pushed": "NORMAL"}
EXPECTED = {
    "normal": ["hello"],
    "fifo": ["0", "1", "2", "3", "4"],
    "delay": [["later"], True],
    "halves": [["commit", "orphan"], ["orphan"]],
    "pushed": ["0", "1", "2", "3", "4"],
}


def run(command: list[str], environment: dict[str, str]) -> Any:
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines, (result.stdout + result.stderr)[-3000:]
    return json.loads(lines[-1])


class Others:
    """What the clients of other languages are to find; collected only where asked for."""

    __test__ = False

    def make_topics(self, broker: BrokerProcess, prefix: str, queues: int) -> None:
        for name, kind in TOPICS.items():
            broker.make_topic(f"{prefix}-{name}", kind, queues)


class TestNode(Others):
    """Node.js."""

    __test__ = bool(NODE)

    def test_the_official_node_client_runs_every_kind_of_message(self, broker: BrokerProcess, tmp_path: Path) -> None:
        folder = Path(NODE)
        if not (folder / "node_modules").exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(OFFICIAL / "package.json", folder)
            subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, check=True, capture_output=True)
        self.make_topics(broker, "n", queues=1)  # it knows queue 0 only
        found = {"NODE_PATH": str(folder / "node_modules"), "HOME": str(tmp_path)}
        assert run(["node", str(OFFICIAL / "flows.cjs"), str(broker.place)], found) == EXPECTED


class TestJava(Others):
    """Java."""

    __test__ = bool(JAVA)

    def test_the_official_java_client_runs_every_kind_of_message(self, broker: BrokerProcess, tmp_path: Path) -> None:
        if not any(Path(JAVA).glob("*.jar")):
            fetch_jars(OFFICIAL / "pom.xml", Path(JAVA))
        self.make_topics(broker, "j", queues=4)
        command = ["java", f"-Duser.home={tmp_path}", "-cp", f"{JAVA}/*", str(OFFICIAL / "Flows.java")]
        pushed = sorted([*EXPECTED["pushed"], "3 again"])
        assert run([*command, str(broker.place)], {}) == {**EXPECTED, "pushed": pushed}
