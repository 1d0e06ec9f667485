"""Millstream keeps streams of records provably intact.

Messages go in, in order and durably (:mod:`millstream.log`); are batched by the time they happened
(:mod:`millstream.batching`); written to content-addressed storage under an anchor (:mod:`millstream.anchoring`);
copied across storage providers by policy and checked bit by bit (:mod:`millstream.stores`, :mod:`millstream.mill`).
:mod:`millstream.pipeline` does the same on Spark.
"""

__version__ = "0.1.0"
