"""A write into a log is whole or not there, and its name belongs to one checkpoint or to the rows of one job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import LogInputError, LogSpec, StorageFullError, Writer, open_store
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.output import log_sink
from millstream.pipeline.output.log_sink import LogStreamWriter, LogWriter, StagedPartMessage, beside
from millstream.pipeline.read_options import OPTIONS
from millstream.pipeline.staging import SPACE, Staging
from millstream.pipeline.write_names import StreamOwner, add_fingerprints, fingerprint
from millstream.stores import LocalStore, all_entries

BODY = StructType().add("body", "binary")


def rows(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


class Target:
    """A log and its staging place, written to as Spark does it: tasks, then the driver's commit or abort."""

    def __init__(self, url: str, log: str = "made", **options: str) -> None:
        self.options = {"store": url, "log": log} | options

    def job(self, parts: Sequence[pa.RecordBatch], write: str = "") -> None:
        writer = LogWriter(self.options | ({"write": write} if write else {}), BODY, overwrite=False)
        done: list[StagedPartMessage | None] = []
        try:
            for part in parts:
                done.append(writer.write(iter([part])))
            writer.commit(done)
        except Exception:
            writer.abort(done)
            raise

    def trigger(self, number: int, part: pa.RecordBatch, options: Mapping[str, str]) -> None:
        writer = LogStreamWriter(self.options | options, BODY, overwrite=False)
        writer.commit([writer.write(iter([part]))], number)

    def bodies(self) -> list[bytes]:
        with open_store(self.options["store"]) as store:
            return [m.body for batch in store.log(LogSpec(self.options["log"])).read() for m in batch]

    def leftovers(self) -> list[str]:
        staging = self.options.get("staging") or beside(self.options["store"])
        store = LocalStore(Path(staging.removeprefix("file://")))
        return [entry.content_id for entry in all_entries(store, SPACE)] if store.has_space(SPACE) else []


@pytest.fixture
def target(log_url: str) -> Target:
    return Target(log_url)


@pytest.mark.parametrize("write", ["", "tuesday"])
def test_a_write_with_a_row_that_no_log_takes_leaves_nothing_and_may_be_corrected(target: Target, write: str) -> None:
    with pytest.raises(LogInputError, match="the column body has nulls"):
        target.job([rows(b"x", b"y"), rows(None)], write)
    assert target.bodies() == target.leftovers() == []
    target.job([rows(b"x", b"y"), rows(b"z")], write)
    assert target.bodies() == [b"x", b"y", b"z"]
    assert target.leftovers() == []


@pytest.mark.parametrize("write", ["", "tuesday"])
def test_a_write_of_which_a_part_is_gone_appends_nothing(
    target: Target, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on hosts that do not share the folder for staging: what tasks laid down lies elsewhere."""
    put = Staging.put
    with monkeypatch.context() as patch, pytest.raises(PipelineError, match=r"is gone .* nothing was appended"):
        patch.setattr(Staging, "put", lambda *args: (f"{put(*args)[0]}-elsewhere", "0" * 64))
        target.job([rows(b"x")], write)
    assert target.bodies() == []
    target.job([rows(b"x")], write)
    assert target.bodies() == [b"x"]


def test_what_an_earlier_run_meant_to_append_and_did_not_is_replaced(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(StorageFullError):
        fail_at(patch, 0)
        target.job([rows(b"wrong")], "tuesday")
    target.job([rows(b"right")], "tuesday")
    assert target.bodies() == [b"right"]
    assert target.leftovers() == []


def test_a_write_without_a_name_that_ended_halfway_is_completed_by_the_name_in_its_error(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [rows(b"x"), rows(b"y")]
    with monkeypatch.context() as patch, pytest.raises(PipelineError, match=r"option\('write', 'once-") as raised:
        fail_at(patch, 1)
        target.job(parts)
    assert target.bodies() == [b"x"]
    target.job(parts, str(raised.value).split("'")[3])
    assert target.bodies() == [b"x", b"y"]
    assert target.leftovers() == []


@pytest.fixture(params=["log", "store"])
def neighbours(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Target, Target]:
    """Two logs of one store, or of the same name in two stores, that share a provider for staging."""
    staging = (tmp_path / "shared").as_uri()
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    if request.param == "log":
        return Target(urls[0], "a", staging=staging), Target(urls[0], "b", staging=staging)
    return Target(urls[0], staging=staging), Target(urls[1], staging=staging)


@pytest.mark.parametrize("options", [{"write": "daily"}, {"checkpointLocation": "CHECKPOINT"}])
def test_writes_of_one_name_into_two_logs_take_nothing_from_each_other(
    neighbours: tuple[Target, Target], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str]
) -> None:
    if "checkpointLocation" in options:
        options = {"checkpointLocation": checkpoint(tmp_path / "checkpoint", "query")}
    first, second = neighbours
    append = Staging._append

    def late(*args: Any) -> None:
        monkeypatch.undo()
        second.trigger(0, rows(b"second"), options)
        append(*args)

    monkeypatch.setattr(Staging, "_append", late)
    first.trigger(0, rows(b"first"), options)
    assert (first.bodies(), second.bodies()) == ([b"first"], [b"second"])
    assert first.leftovers() == second.leftovers() == []


def test_a_write_that_ended_halfway_is_completed_after_one_of_its_name_into_another_log(
    neighbours: tuple[Target, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = neighbours
    parts = [rows(b"x"), rows(b"y")]
    with monkeypatch.context() as patch, pytest.raises(StorageFullError):
        fail_at(patch, 1)
        first.job(parts, "daily")
    second.job([rows(b"z")], "daily")
    first.job(parts, "daily")
    assert (first.bodies(), second.bodies()) == ([b"x", b"y"], [b"z"])
    assert first.leftovers() == []


def test_a_write_that_an_earlier_release_began_is_completed_from_what_it_staged(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(StorageFullError):
        patch.setattr(log_sink, "staging_prefix", lambda _, name: name)
        fail_at(patch, 1)
        target.job([rows(b"x"), rows(b"y")], "tuesday")
    target.job([rows(b"y"), rows(b"x")], "tuesday")
    assert target.bodies() == [b"x", b"y"]
    assert target.leftovers() == []


def fail_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let the disk be full at append *number*."""
    left = iter(range(number))
    append = Writer.append

    def full(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise StorageFullError("the disk is full")
        return append(*args, **kwargs)

    patch.setattr(Writer, "append", full)


def test_the_name_of_a_job_stands_for_its_rows_in_any_order(target: Target) -> None:
    target.job([rows(b"x", b"y"), rows(b"z")], "tuesday")
    target.job([rows(b"z", b"x"), rows(), rows(b"y")], "tuesday")
    with pytest.raises(
        PipelineInputError, match=r"'tuesday' of the log 'made' was used for 3 rows .* none of them was"
    ):
        target.job([rows(b"x", b"y", b"other")], "tuesday")
    assert sorted(target.bodies()) == [b"x", b"y", b"z"]
    assert target.leftovers() == []


def test_a_stream_without_a_known_checkpoint_is_named_by_its_query() -> None:
    assert StreamOwner(query="q1", checkpoint="").named == "the query id q1"
    assert StreamOwner(query="q1", checkpoint="s3://c").named == "the checkpoint s3://c"


def test_the_name_of_a_stream_belongs_to_its_checkpoint(target: Target, tmp_path: Path) -> None:
    first, second = (checkpoint(tmp_path / name, name) for name in ("first", "second"))
    target.trigger(0, rows(b"a"), {"write": "live", "checkpointLocation": first})
    with pytest.raises(PipelineInputError, match=f"belongs to the stream with the checkpoint {first}"):
        target.trigger(0, rows(b"lost"), {"write": "live", "checkpointLocation": second})
    with pytest.raises(PipelineInputError, match="belongs to the stream with the checkpoint"):
        target.job([rows(b"lost")], "live")
    moved = checkpoint(tmp_path / "moved", "first")
    target.trigger(1, rows(b"b"), {"write": "live", "checkpointLocation": moved})
    target.trigger(1, rows(b"b"), {"write": "live", "checkpointLocation": moved})
    assert target.bodies() == [b"a", b"b"]
    target.job([rows(b"c")], "tuesday")
    with pytest.raises(PipelineInputError, match="belongs to a job of 1 rows"):
        target.trigger(0, rows(b"lost"), {"write": "tuesday", "checkpointLocation": first})
    assert target.bodies() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("location", [{}, {"checkpointLocation": "s3a://bucket/checkpoint"}])
def test_a_stream_that_begins_again_under_its_old_name_is_refused(target: Target, location: dict[str, str]) -> None:
    options = {"write": "live"} | location
    for number in (0, 1):
        target.trigger(number, rows(b"%d" % number), options)
    with pytest.raises(PipelineInputError, match="commit 0 of the write 'live' comes after commit 1"):
        target.trigger(0, rows(b"lost"), options)
    assert target.bodies() == [b"0", b"1"]


def checkpoint(folder: Path, query: str) -> str:
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return folder.as_uri()


def test_what_writes_without_a_name_left_behind_is_swept_when_it_is_old(tmp_path: Path) -> None:
    for name in ("once-old", "once-new", "named"):
        Staging(tmp_path.as_uri(), name).store_part(0, [rows(b"x")])
    store = LocalStore(tmp_path)
    times = {entry.content_id.partition("/")[0]: entry.modified for entry in all_entries(store, SPACE)}
    newest = times["once-new"]
    assert newest is not None
    Staging(tmp_path.as_uri(), "any").sweep("once-", newest)
    assert {entry.content_id.partition("/")[0] for entry in all_entries(store, SPACE)} == {"once-new", "named"}


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=4), "source": st.none() | st.text(max_size=2), "key": st.none() | st.just(""),
            "event_time": st.none() | st.integers(0, 9), "headers": st.none() | st.just([{"name": "n", "value": b"v"}]),
        }
    ),
    max_size=8,
)  # fmt: skip


def message_batch(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    names = ["body", "source", "key", "event_time", "headers"]
    schema = pa.schema([pa.field(name, MESSAGE_SCHEMA.field(name).type) for name in names])
    return pa.RecordBatch.from_pylist(list(messages), schema=schema)


@given(messages=MESSAGES, data=st.data())
def test_the_fingerprint_is_that_of_the_rows_whatever_their_order_and_parts(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(messages))
    cut = data.draw(st.integers(0, len(messages)))
    parts = [message_batch(shuffled[:cut]), message_batch(shuffled[cut:])]
    assert add_fingerprints(*map(fingerprint, parts)) == fingerprint(message_batch(messages))
    changed = [{**message, "body": message["body"] + b"!"} for message in messages[:1]] + messages[1:]
    assert not messages or fingerprint(message_batch(changed)) != fingerprint(message_batch(messages))


def test_the_page_of_the_data_source_has_every_option() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "spark-data-source.md"
    section = page.read_text("utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == {*OPTIONS, "checkpointLocation"}
