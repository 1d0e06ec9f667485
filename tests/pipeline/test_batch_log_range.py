"""The part of a log of batches that is read for a range holds all that came of it, and not much else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.batching import BatchConfig
from millstream.batching.service import BatchService
from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import Batch, Log, LogSpec, open_store
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.planning.batch_log_range import find_batch_log_range, last_received
from millstream.pipeline.planning.log_range import LogRange, plan_range

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


def concerns(said: dict[str, Any], wanted: LogRange, messages: list[Message], rules: BatchConfig) -> bool:
    """Whether a message of the log of batches is one that a comparison of the range looks at."""
    if "batch" in said:
        closed_at: int = said["closed_at"]
        return wanted.received_from < closed_at <= wanted.received_to
    message = messages[said["rejected"] - 1]
    refused_at = (message.event_time or 0) + rules.patient.max_delay + 1
    settled = said["reason"] in ("late", "future") or refused_at <= wanted.received_to
    return settled and wanted.first_id <= message.id <= wanted.last_id


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rules", [BatchConfig(50, 20), BatchConfig(50, 20, late="amend", grace=60)], ids=str)
def test_the_part_of_a_range_holds_all_that_came_of_it(
    tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, seed: int, rules: BatchConfig
) -> None:
    draw, more, log_url = random.Random(seed), [], f"{log_url}?durability=os"
    messages = write_log(log_url, "in", sorted(untidy(seed, 600, late=0.2), key=lambda m: m.received_at or 0))
    with open_store(log_url) as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out", block_messages=20))
        while output.sequence("batching") < len(messages):
            service = BatchService(
                source, output, rules, FileDocument(tmp_path / "state"), commit_every=draw.randint(1, 60)
            )
            left = iter(range(draw.randint(9, 40)))
            service.step(lambda left=left: next(left, None) is None)  # type: ignore[misc]
            service.close()
        given = [(m.id, json.loads(m.body)) for batch in output.read() for m in batch]
        for _ in range(8):
            ends = sorted(draw.sample(range(1, len(messages) + 1), 2))
            wanted = plan_range(log_url, "in", ends[0], ends[1], SystemClock())
            first_id, last_id = find_batch_log_range(output, wanted)
            needed = [number for number, said in given if concerns(said, wanted, messages, rules)]
            assert not needed or first_id <= needed[0] <= needed[-1] <= last_id
            more.append((last_id - first_id + 1 - len(needed)) / len(given))
            clock = draw.randint(wanted.received_from - 5, wanted.received_to + 5)
            naive = [m.id for m in messages if ends[0] <= m.id <= ends[1] and (m.received_at or 0) <= clock]
            assert last_received(source, wanted, clock) == max(naive, default=0)
    assert max(more) < 0.4


def test_an_empty_log_of_batches_has_no_part(log_url: str, untidy: Untidy, write_log: WriteLog) -> None:
    write_log(log_url, "in", untidy(1, 10))
    wanted = plan_range(log_url, "in", None, None, SystemClock())
    with open_store(log_url) as store:
        first_id, last_id = find_batch_log_range(store.log(LogSpec("out")), wanted)
    assert last_id < first_id


def test_a_range_without_messages_is_refused_with_the_ids_that_can_be_chosen(log_url: str, write_log: WriteLog) -> None:
    write_log(log_url, "in", [Message(b"x", received_at=1)] * 3)
    with pytest.raises(PipelineInputError, match="'in' has no messages from 5 to 3: choose ids of 1 to 3"):
        plan_range(log_url, "in", 5, None, SystemClock())


def test_the_receive_times_of_a_part_of_a_log_are_found_by_reading_two_blocks(
    log_url: str, write_log: WriteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, read, real = random.Random(7).sample(range(1, 10_000), 200), [], Log.read
    write_log(log_url, "in", [Message(b"x", received_at=time) for time in received], block_messages=20)

    def counted(log: Log, *args: Any, **options: Any) -> Iterator[Batch]:
        for batch in real(log, *args, **options):
            read.append(len(batch))
            yield batch

    monkeypatch.setattr(Log, "read", counted)
    for first_id, last_id, partial in ((15, 187, 6 + 7), (21, 180, 0), (43, 55, 13), (1, 25, 5)):
        wanted = plan_range(log_url, "in", first_id, last_id, SystemClock())
        part = received[first_id - 1 : last_id]
        assert (wanted.received_from, wanted.received_to) == (min(part), max(part))
        assert sum(read) == partial
        read.clear()
