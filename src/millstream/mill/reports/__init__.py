"""Reports, coverage and statistics of spaces."""
