"""Bulk care of copies: duplication by policy, bit integrity checks, repair by vote, honest reports, workers.

Decisions are pure functions over frozen structs (:mod:`.copying.duplication`, :mod:`.checking.bitcheck`,
:mod:`.repairing.vote`); everything that touches a provider, the manifest or a queue executes what they decided.
"""
