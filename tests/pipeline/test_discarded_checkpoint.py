"""A checkpoint that is out of date is removed as a whole, or the job ends with an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from millstream.batching import BatchConfig, Rulebook
from millstream.batching.output_end import NOTHING, OutputEnd
from millstream.log import LogSpec, open_store
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs.batch_stream import StreamPlan, _discard_newer_progress
from millstream.pipeline.output.checkpoint import discard_checkpoint


def make_checkpoint(folder: Path) -> None:
    for name in ("output.json", "begin.json", "offsets/0", "commits/0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(msgspec.json.encode(OutputEnd(9, 9)))


def test_no_part_of_a_checkpoint_is_left_by_a_process_that_is_killed_while_it_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rulebook(BatchConfig(50, 20))
    plan = StreamPlan(store_url="memory://", log="in", output="out", rules=rules, state=tmp_path / "out.state")
    make_checkpoint(plan.checkpoint)

    def killed(path: Path, **_: bool) -> None:
        (path / "output.json").unlink()
        raise KeyboardInterrupt

    with open_store("memory://") as store:
        logs = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(shutil, "rmtree", killed)
            _discard_newer_progress(plan, *logs, NOTHING)
        assert not plan.checkpoint.exists()
    make_checkpoint(plan.checkpoint)
    discard_checkpoint(plan.checkpoint)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    checkpoint = Path("/proc/self/task")  # a folder that nobody can rename
    with pytest.raises(PipelineError, match=r"cannot remove the checkpoint /proc/self/task, .* delete this folder"):
        discard_checkpoint(checkpoint)
    discard_checkpoint(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
