"""Logs as objects in a bucket, without a disk or a database."""
