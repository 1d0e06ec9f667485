"""Lists of patterns: which spaces a producer works on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mill_looping import Bits, Producer, fill, one_policy, take

from millstream.mill.errors import FilterError
from millstream.mill.producers.space_filter import SpaceFilter, read_patterns

FILES = [
    # inclusions, exclusions, what is taken of /me/one/s.1, /me/one/t, /me/two/s.1, /you/one/s.1
    (None, None, "yyyy"),
    (None, "/*/*/*", "nnnn"),
    (None, "/me", "nnny"),
    (None, "/me/*\n", "nnny"),
    (None, "# a remark\n\n  /me/one/s.1  # and another\n", "nyyy"),
    (None, "/*/*/s.*", "nynn"),
    ("/me/one", None, "yynn"),
    ("/you/*/*\n/me/two/*", None, "nnyy"),
    ("/me/*/*", "/me/one/t", "ynyn"),
]


@pytest.mark.parametrize(("inclusions", "exclusions", "taken"), FILES)
def test_a_list_of_patterns_says_which_spaces_are_taken(
    tmp_path: Path, inclusions: str | None, exclusions: str | None, taken: str
) -> None:
    def patterns(text: str | None) -> Any:
        (tmp_path / "list").write_text(text or "")
        return read_patterns(tmp_path / "list")

    chosen = SpaceFilter(patterns(inclusions), patterns(exclusions))
    paths = [("me", "one", "s.1"), ("me", "one", "t"), ("me", "two", "s.1"), ("you", "one", "s.1")]
    assert "".join("ny"[chosen.takes(*path)] for path in paths) == taken


@pytest.mark.parametrize("line", ["me/one", "/me//s", "/a/b/c/d", "/me/o*e/s", "/"])
def test_a_line_that_is_no_pattern_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text(f"# fine\n/me/one/s\n{line}\n")
    with pytest.raises(FilterError, match="line 3"):
        read_patterns(tmp_path / "list")


def test_producers_work_on_the_spaces_that_the_patterns_take(world: Any, tmp_path: Path) -> None:
    for space in ("a", "b"):
        fill(world, "1", space, ["x"])
        fill(world, "2", space, ["x"])
    (tmp_path / "list").write_text("/*/*/a")
    spaces = SpaceFilter(exclusions=read_patterns(tmp_path / "list"))
    producer, bits = Producer(world, tmp_path, one_policy(), spaces=spaces), Bits(world, tmp_path, spaces=spaces)
    producer.run()
    bits.run()
    assert {task.space for task in producer.taken()} == {"b"} == {task.space for task in take(bits.queue)}
