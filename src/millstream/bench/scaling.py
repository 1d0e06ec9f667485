"""How well clusters of more workers do the work of a smaller one."""

from __future__ import annotations

from functools import partial

import msgspec

from millstream.bench.runner import Comparison, Contender, Measurement


class WorkerScaling:
    """Compares each contender on a cluster with what it took on the first cluster, of the fewest workers."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[int, Measurement]] = {}

    def measured(self, comparison: Comparison, workers: int) -> Comparison:
        """*comparison* on a cluster of so many *workers*; its figures say how efficient these are."""
        contenders = [
            Contender(each.name, partial(self._run, (comparison.title, each.name), each, workers))
            for each in comparison.contenders
        ]
        title = f"{comparison.title}, {workers} worker{'s' if workers > 1 else ''}"
        return msgspec.structs.replace(comparison, title=title, contenders=contenders)

    def _run(self, key: tuple[str, str], contender: Contender, workers: int) -> Measurement:
        sample = contender.run()
        # a first run warms Java up and is measured again: the last one of the first cluster counts
        if workers <= self._first.get(key, (workers, sample))[0]:
            self._first[key] = workers, sample
        fewest, first = self._first[key]
        if workers == fewest:  # its efficiency is 1 by definition
            return sample
        figures = {"efficiency": sample.value / first.value * fewest / workers}
        if (spent := sample.figures.get("CPU s", 0.0)) and sample.value:
            work = sample.value * sample.figures["seconds"]
            work_first = first.value * first.figures["seconds"]
            figures["CPU efficiency"] = (first.figures["CPU s"] / work_first) / (spent / work)
        return msgspec.structs.replace(sample, figures={**sample.figures, **figures})
