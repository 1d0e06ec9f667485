"""What users of Millstream need to test their own parts against ours, and what our own tests are made of.

Conformance suites for each seam, fault wrappers, damage on disk, a virtual clock, and real servers on loopback.
"""

from millstream.core.clock import VirtualClock

__all__ = ["VirtualClock"]
