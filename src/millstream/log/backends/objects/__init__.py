"""Logs as objects in a bucket: no disk and no server of their own."""
