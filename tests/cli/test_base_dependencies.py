"""Without any extra, every command works, or names the extra to install in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from millstream.core.extras import EXTRAS

SCRIPT = Path(__file__).with_name("base_dependencies.py")


def test_every_command_works_or_names_its_extra(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--block"]
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    named = set[str]()
    for result in results:
        error, code = result["error"], result["code"]
        assert "unexpected" not in error and "Traceback" not in error and "Error:" not in error.split("\n")[0], result
        extras = re.findall(r"pip install 'millstream\[([\w,]+)\]'", error)
        if extras:
            assert len(error.strip().splitlines()) <= 2 and code in (1, 2), result
            assert set(extras[0].split(",")) <= EXTRAS.keys(), result
            named.add(f"{result['command'].split()[0]}: {extras[0]}")
        elif result["kind"] != "example":
            assert code == 0, result
    assert len(results) > 200, "the commands were not walked"
    assert named == {
        "anchor: serve", "batch: pipeline", "client: messaging", "demo: demo", "did: sidetree", "group: messaging",
        "ingest: mqtt", "log: mysql", "log: s3", "node: postgresql", "pipeline: pipeline", "protect: s3",
        "receive: messaging",
        "send: messaging", "serve: serve", "store: bagit", "topic: messaging", "witness: serve",
    }  # fmt: skip
