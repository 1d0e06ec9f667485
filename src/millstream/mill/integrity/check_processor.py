"""The processor of the tasks that check items."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from millstream.mill.integrity.checker import BitChecker, CheckedItem
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.item_ref import ItemRef
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitCheck


class BitCheckProcessor:
    """Takes :class:`BitCheck` tasks to their end; a RETRY goes back to the queue, with the delay the table asks for."""

    def __init__(self, checker: BitChecker) -> None:
        self._checker = checker

    def process(self, task: BitCheck, attempt: int) -> TaskResult:
        """Check the item for the *attempt*-th time."""
        checked = self._checker.check(ItemRef(task.store, task.space, task.content_id), attempt=attempt)
        return _task_result(checked) or TaskResult(_summary(checked), again=checked.outcome.delay)

    def process_group(self, tasks: Sequence[BitCheck]) -> Sequence[TaskResult | None]:
        """The results of those of *tasks* that can be done together and need no second attempt."""
        results: dict[BitCheck, TaskResult] = {}
        wanted = sorted(set(tasks), key=lambda task: (task.store, task.space))
        for (store, space), some in groupby(wanted, key=lambda task: (task.store, task.space)):
            for checked in self._checker.check_many(store, space, [task.content_id for task in some]):
                if (result := _task_result(checked)) is not None:
                    results[BitCheck(store, space, checked.result.content_id)] = result
        return [results.get(task) for task in tasks]


def _task_result(checked: CheckedItem) -> TaskResult | None:
    """What a task that found *checked* results in; None where the item has to be checked again."""
    if checked.outcome.verdict == CheckVerdict.RETRY:
        return None
    return TaskResult(
        _summary(checked),
        checks=(checked.result,),
        tasks=(checked.task,) if checked.task else (),
        missed=(checked.missed,) if checked.missed else (),
    )


def _summary(checked: CheckedItem) -> str:
    return f"{checked.outcome.row} {checked.outcome.verdict.value}: {checked.outcome.detail}"
