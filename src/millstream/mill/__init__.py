"""Bulk care of copies: duplication by policy, bit integrity checks, repair by vote, honest reports, workers.

Decisions are pure functions over frozen structs (:mod:`.duplication.decision_table`, :mod:`.bit_check_table`,
:mod:`.repair.vote`); everything that touches a provider, the manifest or a queue executes what they decided.
"""
