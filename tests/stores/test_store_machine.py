"""Stores against a dictionary, step by step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from millstream.stores import LocalStore, MemoryStore
from millstream.testing.s3 import S3Server
from millstream.testing.store_machine import store_machine
from suite.sizes import machine


@pytest.mark.long
def test_a_local_store_does_what_a_dictionary_does(tmp_path: Path) -> None:
    numbers = itertools.count()
    kept = store_machine(lambda: LocalStore(tmp_path / str(next(numbers))))
    run_state_machine_as_test(kept, settings=machine(ci=15, long=500, steps=30))
    drafts = [path for path in tmp_path.glob("*/.millstream/drafts/*/*") if path.is_file()]
    assert drafts == []


def test_a_memory_store_does_what_a_dictionary_does() -> None:
    run_state_machine_as_test(store_machine(MemoryStore), settings=machine(ci=30, long=600, steps=50))


@pytest.mark.long
def test_a_store_on_a_real_s3_server_does_what_a_dictionary_does(swift: S3Server) -> None:
    kept = store_machine(swift.new_store, whole_every=5)  # each item that is read is two requests
    run_state_machine_as_test(kept, settings=machine(ci=10, long=100, steps=15))
