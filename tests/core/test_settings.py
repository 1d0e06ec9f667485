"""Settings come from defaults, file, environment and flags, in that order, and say where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

from millstream.batching import BatchConfig, Override, Rulebook
from millstream.cli.config import flatten
from millstream.core.amounts import Duration, Size, counted, format_duration, parse_duration
from millstream.core.clock import MICROSECONDS
from millstream.settings import Settings, SettingsError, load_settings
from millstream.settings.loading import table_kind


def test_later_places_win_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text('[mill]\nworkers = 3\naccount = "a"\n[batching]\nwindow = "1h"\n')
    environment = {"MILLSTREAM_MILL__WORKERS": "5", "UNRELATED": "x"}
    settings, origins = load_settings({"data": str(tmp_path)}, environment=environment)
    assert (settings.mill.workers, settings.mill.account, settings.batching.window) == (5, "a", 3_600_000_000)
    assert origins["mill.workers"] == "environment"
    assert origins["mill.account"] == str(tmp_path / "millstream.toml")
    assert origins["data"] == "flag"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[mill]\nworkers = 'many'", r"mill\.workers .*millstream\.toml"),
        ("[mill]\nworker = 1", r"unknown setting mill\.worker \(.*millstream\.toml\); allowed: .*workers"),
        ("[stores.a]\nurls = 'x'", r"unknown setting stores\.a\.urls \(.*; allowed: audited, most_bytes, url"),
        ("[batching]\nwindow = 'soon'", r"batching\.window \(.*millstream\.toml\): invalid duration 'soon'"),
        ("mill = 3", r"setting mill \(.*: must be a table, not an integer"),
        ("[[", "not valid TOML"),
        ("[stores.a]\nurl = 1", r"setting stores\.a\.url \(.*millstream\.toml\): must be a string, not an integer"),
        ("[stores.a]\nurl = 'x'\n[stores.b]\nurl = 'x'\naudited = 3", r"setting stores\.b\.audited "),
        (
            "[console.users.ann]\nrole = 'admin'",
            r"missing setting console\.users\.ann\.password \(.*\.toml\)",
        ),
        (
            "[console.users.'a.b']\npassword = 'x'\nrole = 'root'",
            r"role \(.*: invalid value 'root'; choose from view",
        ),
        ("[logging]\nlevel = 'all'", r"setting logging\.level \(.*: invalid value 'all'; choose from debug, info, "),
        ("[[log.rules]]\nmax_count = 3", r"missing setting log\.rules\[0\]\.log \(.*millstream\.toml\)"),
        ("[node]\nlease = [1]", r"setting node\.lease \(.*: invalid duration \[1\]: write a time such as 500ms"),
        ("[node]\nlease = '1ms'", r"setting node \(.*: lease must be at least 1 s, not 1 ms"),
        (
            "[anchoring]\nmax_batches = 0",
            r"setting anchoring\.max_batches \(.*millstream\.toml\): must be an integer >= 1",
        ),
        ("[anchoring]\nfile_bytes = 4_000_001", r"setting anchoring\.file_bytes \(.*: must be an integer <= 4000000"),
        ("[broker]\nadvertised = 'here'", r"setting broker \(.*: advertised: invalid address 'here'"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "millstream.toml").write_text(text)
    with pytest.raises(SettingsError, match=reason):
        load_settings({"data": str(tmp_path)}, environment={})


def test_caps_on_batches_are_whole_numbers_or_absent(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path)}, environment={"MILLSTREAM_BATCHING__MAX_COUNT": "500"})
    assert (settings.batching.max_count, settings.batching.max_bytes) == (500, None)


def test_the_rules_of_batching_are_read_with_those_of_some_sources_and_keys(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text(
        '[batching]\nwindow = "10s"\nmax_delay = "2s"\nconflict_cut = "midpoint"\nlate = "side"\ngrace = "1m"\n'
        '[[batching.override]]\nsource = "pump"\nmax_delay = "90s"\n'
        '[[batching.override]]\nkey = "gps"\nwindow = 5\nlate = "reject"\nmax_count = 3\n'
    )
    settings, origins = load_settings({"data": str(tmp_path)}, environment={"MILLSTREAM_BATCHING__LEAP": "0"})
    seconds = MICROSECONDS
    side = {"late": "side", "grace": 60 * seconds}
    assert settings.batching.rules == Rulebook(
        BatchConfig(10 * seconds, 2 * seconds, 0, "midpoint", **side),
        (
            Override(BatchConfig(10 * seconds, 90 * seconds, 0, "midpoint", **side), source="pump"),
            Override(BatchConfig(5 * seconds, 2 * seconds, 0, "midpoint", max_count=3), key="gps"),
        ),
    )
    assert origins["batching.override"] == str(tmp_path / "millstream.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('late = "side"', r"section batching \(.*millstream\.toml\): late is side, but grace is not set"),
        ('late = "amend"\ngrace = "10m"', "grace is 10 min, but late = amend requires at least the window, 30 min"),
        (
            '[[batching.override]]\nkey = "k"\nlate = "amend"\ngrace = "10m"',
            r"override 1 for key 'k' is not valid: grace is 10 min, .* the window, 30 min: increase grace",
        ),
        ('late = "later"', r"batching\.late .*later"),
        ("max_count = -1", r"section batching .*invalid max_count -1"),
        ('grace = "1s"', "grace is set, but late is reject: set late"),
        (
            '[[batching.override]]\nsource = "p"\nwindow = "wide"',
            r"batching\.override 1, window: invalid duration 'wide'",
        ),
        (
            '[[batching.override]]\nsource = "p"\nwindwo = 5',
            r"override 1 for source 'p' has the unknown member 'windwo'",
        ),
        (
            '[[batching.override]]\nkey = "k"\nmax_count = -1',
            r"override 1 for key 'k' is not valid: invalid max_count -1",
        ),
        ("[[batching.override]]\nwindow = 5", "has neither a source nor a key"),
        ('[batching.override]\nsource = "p"', r"batching\.override.*array"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_with_their_place(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "millstream.toml").write_text(f"[batching]\n{text}\n")
    with pytest.raises(SettingsError, match=reason):
        load_settings({"data": str(tmp_path)}, environment={})


def test_a_settings_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load_settings(config=tmp_path / "absent.toml", environment={})


def test_a_node_without_settings_has_everything_in_its_folder(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path)}, environment={})
    assert settings.log_url == f"sqlite:///{tmp_path}/log.db"
    assert list(settings.store_urls) == ["primary"]
    assert settings.policy_folder == tmp_path / "policies"


def test_policies_in_a_store_that_is_not_configured_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings, _ = load_settings({"data": str(tmp_path), "mill": {"policies": "primry:policies"}}, environment={})
    with pytest.raises(SettingsError, match=r"mill\.policies: no store 'primry' is configured.* stores primary"):
        _ = settings.policy_space
    (tmp_path / "primry:policies").mkdir()
    assert settings.policy_space is None  # a folder of this name
    assert settings.policy_folder == tmp_path / "primry:policies"


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("500ms", 500_000),
        ("7us", 7),
        ("20m", 1_200_000_000),
        ("20min", 1_200_000_000),
        ("30", 30_000_000),
        ("1.5s", 1_500_000),
        ("2h", 7_200_000_000),
        (7, 7_000_000),
    ],
)
def test_durations(text: str | int, ticks: int) -> None:
    assert parse_duration(text) == ticks


def test_every_length_of_time_is_written_with_a_unit(tmp_path: Path) -> None:
    lengths = sorted(durations_of(Settings))
    assert {"log.upkeep", "mill.alarms.longest", "pipeline.keep_jobs", "registry.batch_writer_timeout"} <= set(lengths)
    for name in lengths:
        section, _, key = name.rpartition(".")
        (tmp_path / "millstream.toml").write_text(f'[{section}]\n{key} = "90s"\n')
        settings, _ = load_settings({"data": str(tmp_path)}, environment={})
        assert dict(flatten(msgspec.to_builtins(settings)))[name] == 90_000_000, name


def durations_of(struct: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    """The names of all settings under *struct* that are lengths of time."""
    for name, kind in get_type_hints(struct).items():
        if kind == Duration:
            yield f"{path}{name}"
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from durations_of(kind, f"{path}{name}.")


def sections_of(struct: type[msgspec.Struct], name: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The sections under *struct* by name, and those of which there is a table for each name, or any number."""
    yield name, struct
    for field, kind in get_type_hints(struct).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from sections_of(kind, f"{name}.{field}".lstrip("."))
        elif (table := table_kind(kind)) is not None:
            one = f"{name}.{field}.x".lstrip(".")
            yield (one if get_origin(kind) is Mapping else f"[{one[:-2]}]"), table


def test_the_lengths_of_time_and_the_sizes_of_every_section_are_read_as_such(tmp_path: Path) -> None:
    amounts = [
        (section, key, amount)
        for section, struct in sections_of(Settings)
        for key, kind in get_type_hints(struct).items()
        for amount in (Duration, Size)
        if amount in (kind, *get_args(kind))
    ]
    assert {"stores.x", "serve.ingest.x", "serve.relay.x", "[log.rules]"} <= {section for section, _, _ in amounts}
    for section, key, amount in amounts:
        (tmp_path / "millstream.toml").write_text(f'[{section}]\n{key} = "wide"\n')
        with pytest.raises(SettingsError, match=f"{key}.*: invalid (duration|size) 'wide'") as refused:
            load_settings({"data": str(tmp_path)}, environment={})
        assert ("duration" in str(refused.value)) == (amount is Duration)


def test_a_setting_that_was_renamed_is_read_under_its_former_name(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("[mill.brake]\nleast = 3\n")
    former = {"MILLSTREAM_MILL__BRAKE__DELETES": "0.5"}
    settings, origins = load_settings({"data": str(tmp_path)}, environment=former)
    assert (settings.mill.change_guard.least, settings.mill.change_guard.deletes) == (3, 0.5)
    assert origins["mill.change_guard.deletes"] == "environment"


def test_a_setting_under_both_its_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("[mill.brake]\nleast = 3\n[mill.change_guard]\nleast = 4\n")
    with pytest.raises(SettingsError, match=r"mill\.brake .* is now mill\.change_guard, .*: remove mill\.brake"):
        load_settings({"data": str(tmp_path)}, environment={})


def test_a_section_is_declared_in_the_package_that_it_configures() -> None:
    places = {section: struct.__module__ for section, struct in sections_of(Settings)}
    assert places["log"] == "millstream.log.settings" and places["mill.change_guard"] == "millstream.mill.settings"
    elsewhere = {section for section, place in places.items() if not place.endswith(".settings")}
    assert elsewhere == {"", "[log.rules]", "console", "console.users.x", "serve", "http", "logging", "node", "verdict"}


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0 s"), (1, "1 µs"), (1_500, "1500 µs"), (21_000, "21 ms"), (2_000_000, "2 s"), (90_000_000, "90 s"),
     (46 * 60_000_000, "46 min"), (3_600_000_000, "1 h"), (86_400_000_000, "1 d"), (25 * 3_600_000_000, "25 h")],
)  # fmt: skip
def test_a_length_of_time_is_shown_with_its_unit_and_may_be_written_so(duration: int, text: str) -> None:
    assert format_duration(duration) == text
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("count", "one", "text"),
    [(1, "entry", "1 entry"), (0, "entry", "0 entries"), (2_000, "batch", "2,000 batches"), (2, "key", "2 keys")],
)
def test_a_noun_agrees_with_its_number(count: int, one: str, text: str) -> None:
    assert counted(count, one) == text
