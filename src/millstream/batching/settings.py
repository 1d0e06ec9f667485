"""The section ``batching`` of the settings."""

from __future__ import annotations

from millstream.batching.batch_config import BatchConfig, ConflictCut, LatePolicy
from millstream.batching.rulebook import RULE_NAMES, Rulebook, overrides_of
from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import OwnTables, Section


class BatchingSettings(Section, frozen=True):
    """How messages become batches (see ``millstream batch --help``). Without ``leap`` it equals ``max_delay``.

    A batch has at most ``max_count`` messages and ``max_bytes`` bytes of message bodies (default: no limit). Set
    ``max_count`` before the first batch if a source sends more than 10,000 messages in a window: a batch of about
    14,000 messages, or fewer with long keys, exceeds ``anchoring.file_bytes``, and is then not anchored but rejected.

    ``late`` sets how late messages are handled; ``side`` and ``amend`` need ``grace``. Each table of ``override`` has
    ``source`` or ``key`` or both, and the rules that differ for them.
    """

    window: Duration = Duration(30 * 60 * MICROSECONDS)
    max_delay: Duration = Duration(20 * 60 * MICROSECONDS)
    leap: Duration | None = None
    conflict_cut: ConflictCut = "at_event"
    max_count: int | None = None
    max_bytes: int | None = None
    late: LatePolicy = "reject"
    grace: Duration | None = None
    override: OwnTables = ()

    @property
    def rules(self) -> Rulebook:
        """The rules of all sources and keys, in microseconds.

        Raises :class:`~millstream.batching.ConfigError` where they contradict themselves.
        """
        given = {name: getattr(self, name) for name in RULE_NAMES}
        return Rulebook(BatchConfig(**given), overrides_of(self.override, given))
