"""Rules of the settings: which logs they hold for, what they keep with them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.core.clock import MICROSECONDS
from millstream.log import Log, LogInputError, LogSpec, LogStore, Retention, Tiering
from millstream.log.upkeep.rules import LogRule, apply_retention, apply_tiering
from millstream.settings import SettingsError, load_settings
from millstream.stores.tiers import open_log_store

DAY = 86_400 * MICROSECONDS

SETTINGS = """
[log]
upkeep = "10m"

[[log.rules]]
log = "orders*"
max_age = "30d"
max_bytes = "10GiB"
max_count = 1000
keep_consumers = true
cap_bytes = "20GB"
tier = "file:///srv/cold"
segment_bytes = "64MiB"
keep_age = "1d"
keep_bytes = 5000
parquet = true

[[log.rules]]
log = "*"
max_age = "7d"
"""


def apply_rules(log: Log, rules: Sequence[LogRule]) -> None:
    apply_retention(log, rules)
    apply_tiering(log, rules)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with open_log_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        yield store


def test_settings_say_of_logs_by_name_what_is_kept_and_where_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text(SETTINGS)
    settings, _ = load_settings({"data": str(tmp_path)}, environment={})
    first, second = settings.log.rules
    assert settings.log.upkeep == 600 * MICROSECONDS
    assert first.retention == Retention(30 * DAY, 10 << 30, 1000, keep_consumers=True, cap_bytes=20_000_000_000)
    assert first.tiering == Tiering("file:///srv/cold", 64 << 20, DAY, 5000, parquet=True)
    assert (second.retention, second.tiering) == (Retention(7 * DAY), None)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ('max_age = "soon"', "log.rules 1, max_age: invalid duration 'soon'"),
        ('max_bytes = "-1"', "log.rules 1, max_bytes: invalid size '-1'"),
        ("max_count = -1", r"setting log.rules\[0\].*: max_count must be 0 or more, not -1"),
        ("cap_bytes = 5", "cap_bytes requires keep_consumers"),
        ("keep_bytes = 5", "keep_bytes: valid only with tier; set tier to the URL of an object store"),
        ('tier = "file:///x"\nsegment_bytes = 0', "segment_bytes must be 1 byte to 4 GiB"),
        ("most = 5", "most"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_when_settings_are_read(
    tmp_path: Path, rule: str, complaint: str
) -> None:
    (tmp_path / "millstream.toml").write_text(f'[[log.rules]]\nlog = "orders"\n{rule}\n')
    with pytest.raises(SettingsError, match=complaint):
        load_settings({"data": str(tmp_path)}, environment={})


@pytest.mark.parametrize(
    ("pattern", "name", "holds"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders*", "orders2", True),
        ("*", "orders", True),
        ("*", "queue.bit", False),
        ("*", "broker.journal", False),
        ("queue.*", "queue.bit", True),
        ("*", "system:ledger", False),
        ("system:*", "system:ledger", False),
        ("o.ders", "orders", False),
    ],
)
def test_a_star_stands_for_any_text_without_a_dot_and_no_rule_for_system_logs(
    pattern: str, name: str, holds: bool
) -> None:
    assert LogRule(pattern).matches(name) == holds


def test_the_first_rule_that_fits_is_kept_with_the_log_and_a_change_of_it_too(store: LogStore, tmp_path: Path) -> None:
    orders, other = store.log(LogSpec("orders")), store.log(LogSpec("other"))
    url = f"file://{tmp_path / 'cold'}"
    rules = [LogRule("orders", max_count=5, tier=url), LogRule("*", max_count=9)]
    for log in (orders, other):
        apply_rules(log, rules)
    assert (orders.retention, other.retention) == (Retention(max_count=5), Retention(max_count=9))
    first = orders.tiering
    assert first is not None
    assert (first.url, other.tiering) == (url, None)
    apply_rules(orders, [LogRule("*", max_count=7, tier=url, keep_bytes=10)])
    assert orders.retention == Retention(max_count=7)
    assert orders.tiering == Tiering(url, keep_bytes=10, folder=first.folder)


def test_what_nothing_has_changed_is_not_written_again(store: LogStore, tmp_path: Path) -> None:
    log = store.log(LogSpec("orders"))
    rules = [LogRule("*", max_count=5, tier=f"file://{tmp_path / 'cold'}")]
    apply_rules(log, rules)
    before = {key: state.version for key, state in log._backend.states("orders", "").items()}
    apply_rules(log, rules)
    assert {key: state.version for key, state in log._backend.states("orders", "").items()} == before


def test_a_log_without_a_rule_keeps_its_own_and_a_ledger_is_kept_whole(store: LogStore) -> None:
    own, ledger = store.log(LogSpec("own")), store.log(LogSpec("ledger"))
    own.set_retention(Retention(max_count=3))
    ledger.set_retention(Retention(keep_all=True))
    apply_rules(own, [LogRule("orders", max_count=5), LogRule("own")])
    apply_rules(ledger, [LogRule("*", max_count=5)])
    assert (own.retention, ledger.retention) == (Retention(max_count=3), Retention(keep_all=True))


def test_objects_are_not_looked_for_at_another_place(store: LogStore, tmp_path: Path) -> None:
    log = store.log(LogSpec("orders"))
    with log.writer() as writer:
        writer.append([b"soup"])
    apply_rules(log, [LogRule("*", tier=f"file://{tmp_path / 'cold'}")])
    assert log.move_blocks(partial=True).objects == 1
    with pytest.raises(LogInputError, match="a log can have only one"):
        apply_rules(log, [LogRule("*", tier=f"file://{tmp_path / 'colder'}")])
