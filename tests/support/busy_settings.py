"""Settings of a node that does everything at short intervals: workers, producers, a registry, batches and anchors."""

from __future__ import annotations

BUSY_SETTINGS = """
[serve]
workers = ["all"]
producers = true
registry = true
anchor_every = "20s"
[serve.batching]
readings = "readings.batches"
[batching]
window = "30s"
max_delay = "5s"
"""
"""Add the intervals of the producers, which depend on the length of the run."""
