"""The crash test of the log, for tests and for ``millstream log torture``: real processes, really killed.

A writer and a reader run as processes of their own and are killed with signal 9 at random moments, and so is the
database where it is a private one. After each kill everything is examined: what was confirmed is stored, ids are
dense, packs are whole and stored once, and what was acknowledged is not delivered again beyond the stated window.
"""

from __future__ import annotations

from millstream.testing.torture.plan import LOG, TorturePlan, TortureReport
from millstream.testing.torture.rounds import torture
from millstream.testing.torture.scratch import ScratchStore, scratch_beside
from millstream.testing.torture.watched_process import WatchedProcess

__all__ = ["LOG", "ScratchStore", "TorturePlan", "TortureReport", "WatchedProcess", "scratch_beside", "torture"]
