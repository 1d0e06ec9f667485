"""What one consumer group has of one topic: leases, timers, order by message group. Pure, without storage."""
