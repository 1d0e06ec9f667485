"""Duplication: how ends differ, what the table says to do, and bytes that arrive proven or not at all."""
