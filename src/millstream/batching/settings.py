"""The section ``batching`` of the settings."""

from __future__ import annotations

from millstream.batching.batch_config import BatchConfig, ConflictCut, LatePolicy
from millstream.batching.default_limits import NO_LIMITS, DefaultLimits
from millstream.batching.errors import GraceTooShortError
from millstream.batching.rulebook import RULE_NAMES, Rulebook, overrides_of
from millstream.core.amounts import Duration, format_duration
from millstream.core.clock import MICROSECONDS
from millstream.core.settings import OwnTables, Section


class BatchingSettings(Section, frozen=True):
    """How messages become batches (see ``millstream batch --help``). Without ``leap`` it equals ``max_delay``.

    A batch has at most ``max_count`` messages and ``max_bytes`` bytes of message bodies; 0 means no limit. If a limit
    is not set, it is 5,000 and 1,000,000, except on nodes that were created before these defaults existed: these
    have no limit. A batch that exceeds ``anchoring.file_bytes`` is not anchored but rejected.

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
        """The rules of all sources and keys, in microseconds, with no limits but those that are set.

        Raises :class:`~millstream.batching.ConfigError` where they contradict themselves.
        """
        return self.rules_with(NO_LIMITS)

    def rules_with(self, limits: DefaultLimits) -> Rulebook:
        """:attr:`rules`, with *limits* where none are set."""
        given = {name: getattr(self, name) for name in RULE_NAMES}
        for name in limits.__struct_fields__:
            if given[name] is None:
                given[name] = getattr(limits, name)
        try:
            return Rulebook(BatchConfig(**given), overrides_of(self.override, given))
        except GraceTooShortError as error:  # a tick is a microsecond here
            raise GraceTooShortError(error.grace, error.window, error.where, format_duration) from error
