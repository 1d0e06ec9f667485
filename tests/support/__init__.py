"""What only Millstream's own tests use; what users need for tests of theirs is in :mod:`millstream.testing`."""
