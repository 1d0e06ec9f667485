"""What is said when the Java machine does not come up, and that it is not left behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from millstream.core.clock import VirtualClock
from millstream.pipeline.errors import SessionStartError
from millstream.pipeline.gateway import START_TIMEOUT, start_gateway
from millstream.pipeline.java import JavaCandidate


def java_that(folder: Path, does: str) -> JavaCandidate:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return JavaCandidate("settings", str(program), 17, "a script")


def start(java: JavaCandidate, work: Path, clock: VirtualClock, confs: Mapping[str, str] | None = None) -> None:
    start_gateway(java, confs or {}, memory="64m", quick=True, work=work, clock=clock)


def test_a_java_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    java = java_that(tmp_path, "echo 'Unrecognized option: -Xmx64m' >&2; exit 3")
    with pytest.raises(
        SessionStartError,
        match=r"code 3 while Spark started: Unrecognized option: -Xmx64m \(Java's .*spark-console.log\)",
    ):
        start(java, tmp_path, VirtualClock())


def test_of_a_stack_of_java_the_cause_is_told_and_not_the_places(tmp_path: Path) -> None:
    stack = (
        "Exception in thread main: Could not parse Master URL: bogus\\n\\tat a.B.c(B.scala:1)\\n\\tat a.B.d(B.scala:2)"
    )
    java = java_that(tmp_path, f"printf '{stack}\\n' >&2; exit 1")
    with pytest.raises(
        SessionStartError,
        match=r"code 1 while Spark started: Exception in thread main: .*: bogus \(Java's output is in ",
    ):
        start(java, tmp_path, VirtualClock())


def test_a_java_that_never_opens_its_port_is_given_up_and_ended(tmp_path: Path) -> None:
    clock = VirtualClock()
    java = java_that(tmp_path, "exec cat")
    with pytest.raises(SessionStartError, match=r"did not start within 120 s: .* Read its output in "):
        start(java, tmp_path, clock)
    assert clock.monotonic() > START_TIMEOUT
    assert not [child for child in psutil.Process().children() if child.name() == "cat"]


def test_java_begins_with_a_small_heap_and_few_arenas_of_the_c_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    java = java_that(tmp_path, "shift 2; echo arenas $MALLOC_ARENA_MAX $* >&2; exit 1")
    with pytest.raises(SessionStartError, match=r"code 1 while Spark started: arenas 2 .*-Xms64m -Xmx64m "):
        start(java, tmp_path, VirtualClock())


def test_options_for_java_and_arenas_of_the_user_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    java = java_that(tmp_path, "shift 2; echo arenas $MALLOC_ARENA_MAX $* >&2; exit 1")
    confs = {"spark.driver.extraJavaOptions": "-Xms32m '-Dname=two words' -XX:+UseG1GC"}
    with pytest.raises(SessionStartError, match=r"arenas 7 .*-Xms64m .*-Xms32m -Dname=two words -XX:\+UseG1GC") as said:
        start(java, tmp_path, VirtualClock(), confs)
    assert "UseSerialGC" not in str(said.value)
