"""Logs in plain files: blocks appended to segments, one fdatasync a commit (docs/formats/segments.md)."""
