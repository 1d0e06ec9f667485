"""Documents keep their word: links lead somewhere, commands and modules that are named exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from millstream.cli.main import millstream
from millstream.cli.reference import settings
from millstream.settings import Settings

COMMANDS = millstream.list_commands(click.Context(millstream))

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?millstream ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)
TARGET = re.compile(r"`make ([a-z-]+)`|^\s*(?:\$ )?make ([a-z-]+)", re.MULTILINE)
MODULE = re.compile(
    r"`((?:core|log|queue|ingest|batching|stores|anchoring|mill|messaging|pipeline|demo|bench|testing|status|rest|cli)/[a-z_/]+\.py)`"
)


GENERATED = "generated/"
"""Where pages lie that a build of the documentation makes; it follows links to them, and fails where one is missing."""


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_links_lead_somewhere(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text("utf-8")) if not target.startswith("http")]
    missing = [target for target in targets if not (path.parent / target).exists() and GENERATED not in target]
    assert not missing


def test_the_metadata_names_the_versions_of_python_on_which_the_tests_were_run() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    named = {text.rpartition(" ")[2] for text in classifiers if text.startswith("Programming Language :: Python :: 3.")}
    runs = re.findall(r"^\| (3\.\d+)", (ROOT / "docs" / "development.md").read_text("utf-8"), re.MULTILINE)
    assert named == set(runs)


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_commands_exist(path: Path) -> None:
    context = millstream.make_context("millstream", ["log", "--help"], resilient_parsing=True)
    for name, sub in COMMAND.findall(path.read_text("utf-8")):
        assert name in COMMANDS
        command = millstream.get_command(context, name)  # type: ignore[attr-defined]
        subcommands = getattr(command, "commands", {})
        assert not (sub and subcommands) or sub in subcommands


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {one or other for one, other in TARGET.findall(path.read_text("utf-8"))}
    assert asked <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_modules_exist(path: Path) -> None:
    for module in MODULE.findall(path.read_text("utf-8")):
        assert (ROOT / "src" / "millstream" / module).exists(), module


def test_tests_that_are_named_exist() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "millstream" / "testing").rglob("*.py")]
    known = {name for file in files for name in re.findall(r"def (test_[a-z0-9_]+)", file.read_text("utf-8"))}
    named = {(names(path), name) for path in DOCUMENTS for name in re.findall(r"`(test_[a-z0-9_]+)`", path.read_text())}
    assert len(named) > 50
    assert not {(path, name) for path, name in named if name not in known}


QUESTIONS = (
    "storage provider",
    "log backend",
    "broker call",
    "integrity outcome",
    "console page",
    "setting",
    "Spark job",
    "command",
    "metric",
    "batch id",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_contributor_guide_answers_where_to_add_it_with_at_most_three_files_that_exist(question: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    (answer,) = [answer for what, answer in rows if question in what]
    paths = [path for path in re.findall(r"`([\w/.*-]+)`", answer) if "/" in path]
    assert len(paths) <= 3 and (paths or question == "metric")
    assert all(
        any(found.glob(path)) for path in paths for found in [ROOT if path[:5] == "docs/" else ROOT / "src/millstream"]
    )


def test_the_contributor_guide_says_where_each_section_of_the_settings_is_passed_on() -> None:
    guide, sections = (ROOT / "CONTRIBUTING.md").read_text("utf-8"), dict[str, str]()
    for names_of_row, declared, passed_on in re.findall(r"^\| (`\[.+?) \| `(.+?)` \| (.+?) \|$", guide, re.MULTILINE):
        for section in re.findall(r"\[(\w+)\]", names_of_row):
            sections[section] = declared
            for module in re.findall(r"`([\w/]+\.py)`", passed_on):
                used = rf"\bsettings\.({section}|store_urls)\b|\b{section.title()}Settings\b"
                assert re.search(used, _source(module)), f"{module} does not use [{section}]"
    kinds = {name: kind for name, kind in Settings.__annotations__.items() if kind.rstrip("]").endswith("Settings")}
    assert set(sections) == set(kinds)
    for section, kind in kinds.items():
        (name,) = re.findall(r"\w+Settings", kind)
        assert f"class {name}(" in _source(sections[section])


def _source(module: str) -> str:
    return (ROOT / "src" / "millstream" / module).read_text("utf-8")


def test_every_package_is_on_the_module_map() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = {path.parent.name for path in (ROOT / "src" / "millstream").glob("*/__init__.py")}
    parts = {
        f"{path.parent.parent.name}/{path.parent.name}"
        for path in (ROOT / "src" / "millstream").glob("*/*/__init__.py")
        if path.parent.parent.name in {"log", "mill", "messaging"}
    }
    assert not {name for name in packages if f"`{name}/`" not in text}
    assert not {name for name in parts if f"`{name}/`" not in text and f"`{name.partition('/')[2]}/`" not in text}


def test_every_format_has_a_row_in_the_reference() -> None:
    table = (ROOT / "docs" / "reference" / "formats.md").read_text("utf-8")
    assert {path.name for path in (ROOT / "docs" / "formats").glob("*.md")} == set(
        re.findall(r"formats/([\w-]+\.md)", table)
    )


def test_each_decision_has_a_number_of_its_own_with_which_its_heading_begins() -> None:
    numbers = dict[str, str]()
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        number = path.name[:4]
        assert path.read_text("utf-8").startswith(f"# {number}: "), path.name
        assert number not in numbers, (path.name, numbers[number])
        numbers[number] = path.name


def test_the_reference_of_settings_names_pages_and_no_classes() -> None:
    page = settings()
    assert not set(re.findall(r"`[A-Z][a-z]+[A-Z]?\w*`|Raises", page)) - {"`EdDSA`"}
    links = re.findall(r"\]\(\.\./\.\./([\w/-]+\.md)(?:#([\w-]+))?\)", page)
    assert ("registry.md", "settings") in links and ("upkeep.md", "set-the-rules-of-many-logs") in links
    for path, anchor in links:
        titles = re.findall(r"^#+ (.+)$", (ROOT / "docs" / path).read_text("utf-8"), re.MULTILINE)
        assert not anchor or anchor in {title.lower().replace(" ", "-") for title in titles}, (path, anchor)


def test_tests_that_the_reference_names_are_there() -> None:
    table = (ROOT / "docs" / "reference" / "formats.md").read_text("utf-8")
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/.]+)`", table))


@pytest.mark.acceptance
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        ROOT / "docs",
        tmp_path / "html",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "html" / "reference" / "generated" / "commands.html").read_text("utf-8")
    assert all(f"millstream {name}" in reference for name in COMMANDS)
    settings = (tmp_path / "html" / "reference" / "generated" / "settings.html").read_text("utf-8")
    assert "[batching]" in settings and "max_delay" in settings
    assert all(
        f"[{each}" in settings for each in ("stores.NAME", "serve.ingest.NAME", "console.users.NAME", "[log.rules]")
    )
    http = (tmp_path / "html" / "reference" / "generated" / "http.html").read_text("utf-8")
    assert "/api/v1/queues/{queue}/redrive" in http and "/sidetree/v1/operations" in http
