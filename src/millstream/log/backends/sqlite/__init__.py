"""Logs in one file of SQLite."""
