"""The state of one consumer group of one topic: leases, timers, order by message group. Pure, without storage."""
