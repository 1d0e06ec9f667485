"""The bit log: the last word on each item, written twice without harm, and gone once a report has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.mill.integrity import bit_log
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult

IDS = st.sampled_from(["a", "a/b", "é", "z", "\U0001f600"])
CHECKS = st.lists(
    st.tuples(IDS, st.integers(1, 9), st.sampled_from([CheckVerdict.SUCCESS, CheckVerdict.FAILURE])), max_size=30
)


def result(content_id: str, at: int, verdict: CheckVerdict = CheckVerdict.SUCCESS, space: str = "s") -> CheckResult:
    return CheckResult("1", space, content_id, verdict, "B1", "intact", "detail", at, 7, "a" * 64, "b" * 64, "missing")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bit_log, "_PAGE", 2)
    monkeypatch.setattr(bit_log, "_PURGED", 2)


@pytest.mark.usefixtures("small_pages")
def test_the_bit_log_is_a_map_from_items_to_their_last_check(new_world: Any) -> None:
    @given(CHECKS, st.integers(0, 10), st.integers(0, 10))
    def machine(checks: list[tuple[str, int, CheckVerdict]], since: int, until: int) -> None:
        log = BitLog(new_world().engine)
        log.append([result(*check) for check in checks])
        first = {(name, at): result(name, at, verdict) for name, at, verdict in reversed(checks)}
        last = {name: first[name, at] for name, at in sorted(first) if at >= since}
        assert list(log.results("1", "s", since=since)) == [last[name] for name in sorted(last, key=str.encode)]
        assert log.count("1", "s", since=since) == len(last)
        log.purge("1", "s", until=until)
        assert {(one.content_id, one.checked_at) for one in log.results("1", "s")} == {
            (name, max(at for other, at in first if other == name and at > until)) for name, at in first if at > until
        }

    machine()


def test_spaces_are_apart(new_world: Any) -> None:
    log = BitLog(new_world().engine)
    log.append([result("a", 1), result("b", 1, space="t")])
    log.append([result("a", 1)])
    assert (log.spaces(), log.count("1", "s")) == ([("1", "s"), ("1", "t")], 1)
    log.purge("1", "s", until=1)
    assert log.spaces() == [("1", "t")]
