"""Those who take part in the rot drill: a node of Millstream, ``millstream protect``, and rclone in four ways."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from millstream.cli.main import run as run_command
from millstream.mill.integrity_outcomes import ROWS
from millstream.mill.manifest_table import manifest_table
from millstream.node import DATABASE, Node
from millstream.settings import Settings, load_settings
from millstream.stores import LocalStore
from millstream.stores.s3 import parse_address
from millstream.testing.swift import ENVIRONMENT
from millstream_peers.mill.drill_faults import BUCKET, FOLDER, SOURCE, SPACE, DrillFault
from millstream_peers.rclone import rclone

COPIES = (FOLDER, BUCKET)
PROPERTIES = {"creator": "mill"}

Said = Mapping[tuple[str, str], str]
"""What a tool says of items, by store and content id."""

Items = Iterable[tuple[str, bytes]]

_ROUNDS = 3
"""How often a node checks and repairs at most, before what is left is for a person."""

_AWAY = re.compile(r"\bmounted|mount its disk|not available", re.IGNORECASE)


class ToolRun(msgspec.Struct, frozen=True):
    """What a tool said: of items at first (``told``) and in the end (``left``); ``well`` is whether it said at the end,
    by its exit code, that all is well. ``errors`` are what it printed of whole stores."""

    told: Said
    left: Said
    well: bool
    errors: str = ""

    @property
    def names_missing_mount(self) -> bool:
        """Whether it said that a store is not there, where it found nothing in it."""
        return _AWAY.search(self.errors) is not None


class DrillTool(Protocol):
    """Somebody who keeps the copies of a space."""

    @property
    def name(self) -> str: ...

    def start(self, folder: Path, stores: Mapping[str, Any]) -> None:
        """Get ready: the source is *stores* "1", copies go to "2" and "3"; *folder* is for files of its own."""
        ...

    def put(self, items: Items) -> None:
        """Put *items* into the source."""
        ...

    def copy(self) -> None:
        """Make the copies, or bring them up to date; they are this tool's to keep."""
        ...

    def delete_rows(self, content_id: str, stores: Iterable[str]) -> None:
        """Delete what the tool has recorded of an item in some stores, where it records anything."""
        ...

    def applies(self, fault: DrillFault) -> bool:
        """Whether *fault* is one: of a file that people own it may be what they wanted."""
        ...

    def run(self) -> ToolRun:
        """Do all that the tool does about damage."""
        ...

    def run_daily(self, store: str) -> ToolRun:
        """Do what the tool does every day, which includes a look at *store*."""
        ...


class Millstream:
    """A node with audited stores: ``mill check``, ``mill repair`` and ``mill duplicate --all``, in rounds."""

    name = "Millstream"

    def start(self, folder: Path, stores: Mapping[str, Any]) -> None:
        self._data = folder / "node"
        (self._data / "policies").mkdir(parents=True)
        urls = [f'[stores.{name}]\nurl = "{store.url}"\naudited = true\n' for name, store in stores.items()]
        (self._data / "millstream.toml").write_text("\n".join(("[mill]\nprocesses = 0\n", *urls)))
        (self._data / "policies" / "duplication-accounts.json").write_text('["drill"]')
        pairs = [{"srcStoreId": SOURCE, "destStoreId": copy} for copy in COPIES]
        policy = self._data / "policies" / "drill-duplication-policy.json"
        policy.write_text(json.dumps({"defaultPolicies": pairs}))

    def put(self, items: Items) -> None:
        with self._node() as node:
            source = node.stores.providers[SOURCE]
            source.create_space(SPACE)
            for content_id, body in items:
                source.put(SPACE, content_id, io.BytesIO(body), properties=PROPERTIES)

    def copy(self) -> None:
        self._command("audit")
        code, _, errors = self._command("duplicate")
        assert code == 0, errors

    def delete_rows(self, content_id: str, stores: Iterable[str]) -> None:
        delete_manifest_rows(self._data, content_id, stores)

    def applies(self, fault: DrillFault) -> bool:  # noqa: ARG002 - all are
        return True

    def run(self) -> ToolRun:
        known = len(self._changed_properties())
        code, found, errors = self._check()
        told = dict(found)
        for _ in range(_ROUNDS):
            before = found
            errors += self._repair()
            code, found, said = self._check()
            told, errors = found | told, errors + said
            if found.items() <= before.items():
                break  # what is left is for a person
        put_right = self._changed_properties()[known:]
        told |= {place: "properties differ (D8)" for place in put_right if place not in told}
        return ToolRun(told, found, code == 0, errors)

    def _repair(self) -> str:
        """Everything that repairs: the queue, then a loop."""
        _, _, errors = self._command("repair")
        return errors + self._command("duplicate", "--all")[2]

    def run_daily(self, store: str) -> ToolRun:
        code, found, errors = self._check("--store", store)
        for arguments in ("repair", "duplicate"):
            errors += self._command(arguments)[2]
        return ToolRun(found, found, code == 0, errors)

    def _check(self, *options: str) -> tuple[int, dict[tuple[str, str], str], str]:
        code, reports, errors = self._command("check", *options)
        found = {
            (report["store"], finding["content_id"]): finding_words(finding["row"], finding["kind"])
            for report in reports
            for finding in report["findings"]
        }
        for report, group in itertools.product(reports, ("strays", "absent")):
            names = [(report["store"], name) for name in report[group]["first"]]
            found = dict.fromkeys(names, _GROUPS[group]) | found
        well = not errors and all(report["result"] == "SUCCESS" for report in reports)
        assert (code == 0) == well and not (well and found), (code, reports, errors)
        return code, found, errors

    def _changed_properties(self) -> list[tuple[str, str]]:
        """What the audit log has of properties that the mill itself has set."""
        _, events, _ = self._command("audit")
        return [(e["store"], e["content_id"]) for e in events if e["action"] == "SET_CONTENT_PROPERTIES"]

    def _command(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        return command("mill", *arguments, "--data", str(self._data), "--json")

    @contextlib.contextmanager
    def _node(self) -> Iterator[Node]:
        with Node.open(_settings(self._data)) as node:
            yield node


class Protect:
    """``millstream protect --read all`` over a folder of other programs, twice."""

    name = "millstream protect"

    def start(self, folder: Path, stores: Mapping[str, Any]) -> None:
        self._data, self._source = folder / "node", stores[SOURCE]
        self._names: dict[str, str] = {}
        to = [folder / FOLDER, stores[BUCKET].url]
        source = str(folder / SOURCE / SPACE)
        self._arguments = ["protect", source, *(f"--to={one}" for one in to), "--data", str(self._data), "--json"]

    def put(self, items: Items) -> None:
        put_plainly(self._source, items)

    def copy(self) -> None:
        code, reports, errors = command(*self._arguments)
        assert code == 0, (reports, errors)
        (report,) = reports
        places = (SOURCE, *COPIES)
        names = (report["store"], *(copy["store"] for copy in report["copies"]))
        self._names = dict(zip(names, places, strict=True))
        self._copies = names[1:]

    def delete_rows(self, content_id: str, stores: Iterable[str]) -> None:
        chosen = [name for name, place in self._names.items() if place in stores]
        delete_manifest_rows(self._data, content_id, chosen)

    def applies(self, fault: DrillFault) -> bool:
        return SOURCE not in fault.stores or fault.name in ("flipped", "fifo")

    def run(self) -> ToolRun:
        code, reports, errors = command(*self._arguments, "--read=all")
        told = self._findings(reports) | self._repairs(reports)
        code, reports, more = command(*self._arguments, "--read=all")
        left = self._findings(reports)
        return ToolRun(left | told, left, code == 0, errors + more + self._errors(reports))

    def run_daily(self, store: str) -> ToolRun:  # noqa: ARG002 - a run looks at all of them
        code, reports, errors = command(*self._arguments)
        found = self._findings(reports)
        return ToolRun(found, found, code == 0, errors + self._errors(reports))

    def _findings(self, reports: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
        found = {}
        for report in reports:
            for one in report["findings"]:
                found[SOURCE, one["content_id"]] = one["kind"]
            for copy in report["copies"]:
                for one in copy["findings"]:
                    found[self._names[copy["store"]], one["content_id"]] = _kind_words(one["kind"])
        return found

    def _repairs(self, reports: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
        """The copies that the report names as repaired."""
        return {
            (self._names[copy["store"]], one["content_id"]): _kind_words(one["kind"])
            for report in reports
            for copy in report["copies"]
            for one in copy["repairs"]
        }

    def _errors(self, reports: list[dict[str, Any]]) -> str:
        return " ".join(one for report in reports for one in (report["error"], *(c["error"] for c in report["copies"])))


class Rclone:
    """rclone with *arguments* from the source to both copies; the copies are made with ``rclone sync``."""

    def __init__(self, name: str, url: str, arguments: tuple[str, ...]) -> None:
        self.name = name
        self._arguments = arguments
        self._remotes = {
            "RCLONE_CONFIG_SWIFT_TYPE": "s3",
            "RCLONE_CONFIG_SWIFT_PROVIDER": "Other",
            "RCLONE_CONFIG_SWIFT_ENDPOINT": parse_address(url).endpoint or "",
            "RCLONE_CONFIG_SWIFT_ACCESS_KEY_ID": ENVIRONMENT["MILLSTREAM_TEST_S3_ACCESS_KEY_ID"],
            "RCLONE_CONFIG_SWIFT_SECRET_ACCESS_KEY": ENVIRONMENT["MILLSTREAM_TEST_S3_SECRET_ACCESS_KEY"],
            "RCLONE_CONFIG_SWIFT_FORCE_PATH_STYLE": "true",
            "RCLONE_CONFIG_SWIFT_UPLOAD_CUTOFF": "16Mi",
            "RCLONE_CONFIG_SWIFT_CHUNK_SIZE": "8Mi",
            "RCLONE_CONFIG_SWIFT_REGION": "us-east-1",
        }

    def start(self, folder: Path, stores: Mapping[str, Any]) -> None:
        address = parse_address(stores[BUCKET].url)
        self._store = stores[SOURCE]
        self._source = str(folder / SOURCE / SPACE)
        stores[FOLDER].create_space(SPACE)
        stores[BUCKET].create_space(SPACE)
        self._copies = {
            FOLDER: str(folder / FOLDER / SPACE),
            BUCKET: f"swift:{address.bucket}/{address.prefix}{SPACE}",
        }

    def put(self, items: Items) -> None:
        put_plainly(self._store, items)

    def copy(self) -> None:
        for copy in self._copies.values():
            done = rclone("sync", self._source, copy, remotes=self._remotes)
            assert done.returncode == 0, done.stderr

    def delete_rows(self, content_id: str, stores: Iterable[str]) -> None:
        """rclone records nothing."""

    def applies(self, fault: DrillFault) -> bool:
        return fault.name != "garbled"

    def run(self) -> ToolRun:
        told: dict[tuple[str, str], str] = {}
        codes, errors = [], ""
        for store, copy in self._copies.items():
            if self._arguments[0] == "check":
                done = rclone(*self._arguments, "--combined", "-", self._source, copy, remotes=self._remotes)
                lines = (line.split(" ", 1) for line in done.stdout.splitlines())
                told |= {(store, name): _SIGNS[sign] for sign, name in lines if sign != "="}
            else:
                done = rclone(*self._arguments, "-v", self._source, copy, remotes=self._remotes)
                names = _DONE.findall(done.stderr)
                told |= {(store, name): _VERBS[verb] for name, verb in names}
            codes.append(done.returncode)
            errors += "".join(line for line in done.stderr.splitlines(keepends=True) if "directory not found" in line)
        return ToolRun(told, told, not any(codes), errors)

    def run_daily(self, store: str) -> ToolRun:  # noqa: ARG002 - a run looks at all of them
        return self.run()


def put_plainly(source: LocalStore, items: Items) -> None:
    """Put *items* into the folder of *source* as plain files, as any program would."""
    source.create_space(SPACE)
    for content_id, body in items:
        source.put(SPACE, content_id, io.BytesIO(body), properties=PROPERTIES)


def delete_manifest_rows(data: Path, content_id: str, stores: Iterable[str]) -> None:
    """Delete the rows of an item for some *stores* in the database of the node at *data*."""
    columns = manifest_table.c
    which = sa.and_(columns.content_id == content_id, columns.store.in_(list(stores)))
    with database(data) as connection:
        connection.execute(sa.delete(manifest_table).where(which))


@contextlib.contextmanager
def database(data: Path) -> Iterator[sa.Connection]:
    """A connection to the database of the node at *data*, as anybody may open it."""
    engine = sa.create_engine(f"sqlite:///{data / DATABASE}")
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def command(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code of ``millstream`` with *arguments*, the lines of JSON that it printed, and its errors."""
    printed, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = run_command(list(arguments))
    printed.flush()
    printed.seek(0)
    return code, [json.loads(line) for line in printed if line.startswith("{")], errors.getvalue()


def finding_words(row: str, kind: str) -> str:
    """What a finding is called in the table, with the row of the bit check."""
    return f"{_WORDS.get(row, kind.replace('-', ' '))} ({row})"


def _reason_words(reason: str) -> str:
    """The same of the reason of a repair, ``STORE: ROW KIND``."""
    row, _, kind = reason.partition(": ")[2].partition(" ")
    return finding_words(row, kind)


def _kind_words(kind: str) -> str:
    """The same of what a report of ``protect`` names by its kind alone."""
    return next((finding_words(number, kind) for number, row in ROWS.items() if row.kind == kind), kind)


def _settings(data: Path) -> Settings:
    return load_settings({"data": str(data)}, config=None)[0]


_GROUPS = {"strays": "in no source", "absent": "not there"}

_WORDS = {
    "B3": "corrupt",
    "B4": "unreadable",
    "B7": "the provider's checksum is wrong",
    "B9": "differs from the manifest",
    "B10": "content, provider and manifest all differ",
    "B15": "not in the manifest",
    "B16": "corrupt, not in the manifest",
    "B18": "missing",
    "B19": "corrupt, no provider checksum",
    "B22": "no answer from the provider",
    "B25": "not in the manifest, and not what else was recorded",
    "B29": "properties differ",
    "B27": "sidecar or metadata damaged",
}
_SIGNS = {"+": "missing", "-": "extra", "*": "differs", "!": "unreadable"}
_DONE = re.compile(r"(?:INFO|ERROR)\s+: (.+?): (Copied|Deleted|Failed)", re.MULTILINE)
_VERBS = {"Copied": "copied", "Deleted": "deleted", "Failed": "failed"}
