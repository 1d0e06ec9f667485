"""Restoring a space: every item from a good copy, verified on the way, into a folder or another store."""
