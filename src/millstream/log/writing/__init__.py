"""Writing to a log: append requests, group commit, the writer lease."""
