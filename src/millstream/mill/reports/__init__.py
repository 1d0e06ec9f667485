"""What can be said of a space, and believed: reports, coverage, statistics."""
