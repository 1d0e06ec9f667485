"""Worker managers on a small world of the mill, and a processor that does what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.mill.task_processor import ProcessorRegistry, TaskResult
from millstream.mill.tasks import BitCheck, QueueName, encode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.task_settler import OthersCanDo, nobody_can

DEADLINE = 30


class Scripted:
    """A processor that does what *script* says for each content id and remembers what it did."""

    def __init__(self, script: Callable[[str, int], TaskResult | None] | None = None) -> None:
        self._script = script or (lambda _, __: None)
        self.done: list[tuple[str, int]] = []

    def process(self, task: Any, attempt: int) -> TaskResult:
        self.done.append((task.content_id, attempt))
        return self._script(task.content_id, attempt) or TaskResult("done")


def task(name: str) -> bytes:
    return encode_task(BitCheck("1", "s", name))


def manager(
    world: Any,
    processor: Any,
    *queues: str,
    kind: type[Any] = BitCheck,
    others_can_do: OthersCanDo = nobody_can,
    **more: Any,
) -> WorkerManager:
    names = queues or ("low",)
    settings = WorkerSettings(**({"threads": 1, "visibility": 60.0} | more))
    every = {name.value: world.queue(name.value) for name in QueueName}
    registry, sink = ProcessorRegistry({kind: processor}), ResultSink(world.manifest, every)
    return WorkerManager(
        [world.queue(name) for name in names], registry, sink, world.clock, settings, others_can_do=others_can_do
    )


def fails(_name: str, _attempt: int) -> TaskResult | None:
    raise ValueError("it never works")
