"""Stores against a dictionary, step by step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from millstream.stores import LocalStore, MemoryStore
from millstream.testing.s3 import S3Server
from millstream.testing.store_machine import store_machine


@pytest.mark.long
def test_a_local_store_does_what_a_dictionary_does(tmp_path: Path, size: str) -> None:
    numbers = itertools.count()
    machine = store_machine(lambda: LocalStore(tmp_path / str(next(numbers))))
    examples = 500 if size == "long" else 15
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None))
    drafts = [path for path in tmp_path.glob("*/.millstream/drafts/*/*") if path.is_file()]
    assert drafts == []


def test_a_memory_store_does_what_a_dictionary_does() -> None:
    run_state_machine_as_test(store_machine(MemoryStore), settings=settings(max_examples=30, deadline=None))


@pytest.mark.long
def test_a_store_on_a_real_s3_server_does_what_a_dictionary_does(swift: S3Server, size: str) -> None:
    examples, steps = (100, 30) if size == "long" else (3, 8)
    machine = store_machine(swift.new_store)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
