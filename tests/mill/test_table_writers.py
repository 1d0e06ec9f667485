"""Each table of the mill has one writer, which the documentation names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import millstream

PACKAGE = Path(millstream.__file__).parent


def places(pattern: str) -> set[str]:
    """The modules of the package with a line that matches."""
    found = re.compile(pattern)
    return {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if found.search(path.read_text("utf-8"))
    }


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        (r"(insert|update|delete)\(_?(manifest|manifest_table)\)", {"mill/manifest_writer.py"}),
        (r"insert_rows\(connection, _?(manifest|manifest_table),", {"mill/manifest_writer.py"}),
        (r"(?i)(insert into|update|delete from|replace into) mill_manifest", {"mill/manifest_writer.py"}),
        (r"(?i)(insert into|update|delete from|replace into) mill_audit_log", set()),
        (r"(?i)(insert into|update|delete from|replace into) mill_bit_log", {"mill/integrity/bit_log.py"}),
        (r"\baudit_log\.append\(", set()),
        (r"\blog\.append\(audits\)", {"mill/workers/result_sink.py"}),
        (r"(\b|_)bit_log\.append_intact\(", {"mill/integrity/check_writer.py"}),
        (r"(\b|_)bit_log\.append\(", {"mill/integrity/check_writer.py", "mill/rebuild.py"}),
        (r"(\b|_)bit_log\.purge\(", {"mill/integrity/space_reports.py"}),
    ],
)
def test_nobody_else_writes(statement: str, modules: set[str]) -> None:
    assert places(statement) == modules


def test_the_documentation_names_the_writers() -> None:
    text = (PACKAGE.parents[1] / "docs" / "mill.md").read_text("utf-8")
    for table, module, writer in (
        ("mill_manifest", "manifest_writer", "ManifestWriter"),
        ("mill_audit_log", "workers.result_sink", "ResultSink"),
        ("mill_bit_log", "integrity.check_writer", "CheckWriter"),
    ):
        assert hasattr(importlib.import_module(f"millstream.mill.{module}"), writer)
        assert re.search(rf"\| `{table}` \|.*`{writer}` \(`{module}`\)", text)
