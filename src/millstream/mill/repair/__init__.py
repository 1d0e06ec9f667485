"""Repair: the vote on which bytes are right, and its execution."""
