"""The chain of a log in a bucket, as tests put it together from the first object that was created under each name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.log.backends.objects.commit_object import CommitObject, decode_commit
from millstream.log.backends.objects.names import LogNames, commit_number
from millstream.testing.log_backends import NAME


def chain_commits(first: Mapping[str, bytes]) -> Iterator[tuple[CommitObject, bytes]]:
    """The commits among the objects *first*, with all their bytes. Each must continue the one before it."""
    before: CommitObject | None = None
    prefix = LogNames(NAME).commits
    for name in sorted(name for name in first if name.startswith(prefix)):
        commit = decode_commit(NAME, commit_number(name), first[name])
        if before is not None:
            assert (commit.head.previous, commit.head.number) == (before.digest, before.head.number + 1)
            assert (commit.head.previous_id, commit.head.epoch >= before.head.epoch) == (before.head.last_id, True)
        yield commit, first[name]
        before = commit


def chain_blocks(first: Mapping[str, bytes]) -> dict[int, bytes]:
    """The blocks of the chain by their first ids."""
    blocks: dict[int, bytes] = {}
    for commit, data in chain_commits(first):
        for entry in commit.head.blocks:
            start = commit.data_start + entry.offset
            blocks[entry.first_id] = data[start : start + entry.size]
    return blocks
