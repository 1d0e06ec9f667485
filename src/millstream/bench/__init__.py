"""Benchmarks that anyone can repeat: contenders run turn by turn in one process, medians and ratios are reported.

A benchmark is a module with a one-sentence docstring and a function
``comparisons(size: Size, folder: Path) -> Iterator[Comparison]`` (see :mod:`millstream.bench.runner`). *folder* is
empty and removed afterwards.
"""

from __future__ import annotations

BENCHMARKS = {
    "log": "millstream.bench.log",
    "log-buckets": "millstream.bench.log_buckets",
    "log-flat": "millstream.bench.log_flat",
    "batching": "millstream.bench.batching",
    "batching-spark": "millstream.bench.batching_spark",
    "pipeline": "millstream.bench.pipeline",
    "messaging": "millstream.bench.messaging",
    "anchoring": "millstream.bench.anchoring",
    "mill": "millstream.bench.mill",
    "demo": "millstream.bench.demo",
}
"""Each benchmark by name, and the module that holds it (loaded only when it is run)."""
