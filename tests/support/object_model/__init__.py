"""Models of the protocols of a log on object storage, small enough to visit all of their states."""
