"""Policies are saved only over the version that was seen, checked before they are in force, and never forgotten."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.mill.errors import PolicyError
from millstream.mill.policies.locations import LOCK_SECONDS, FolderLocation, PolicyLocation, SpaceLocation
from millstream.mill.policies.repository import ACCOUNTS_FILE, PolicyRepository
from millstream.mill.policies.saving import (
    ABSENT,
    PolicyConflictError,
    history,
    save_policy,
    saved_accounts,
    version_of,
    withdraw_policy,
)
from millstream.stores import MemoryStore

SAMPLE = b"""{
  "spaceDuplicationStorePolicies":{
    "spaceA":
      [
        {"srcStoreId":"1","destStoreId":"2"},
      ]
  }
}"""
"""Cut from the seed document, with its comma too many."""


def policy(*destinations: str) -> bytes:
    return json.dumps({"defaultPolicies": [{"srcStoreId": "1", "destStoreId": one} for one in destinations]}).encode()


@pytest.fixture(params=["folder", "space"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PolicyLocation:
    if request.param == "folder":
        return FolderLocation(tmp_path / "policies")
    return SpaceLocation(MemoryStore(), "policies")


def test_a_policy_that_was_saved_is_in_force(place: PolicyLocation) -> None:
    saved = save_policy(place, "acme", SAMPLE, if_match=ABSENT)
    assert (saved.version, saved.number) == (version_of(SAMPLE), 1)
    assert [str(warned) for warned in saved.warnings] == ["line 5, column 45: a comma before the closing bracket"]
    save_policy(place, "other", policy("2"))
    loaded = PolicyRepository(place).load()
    assert list(loaded.by_account) == ["acme", "other"]
    assert [str(pair) for pair in loaded.by_account["acme"].lookup("spaceA")] == ["1 → 2"]


def test_nothing_is_saved_over_a_version_that_was_not_seen(place: PolicyLocation) -> None:
    first = save_policy(place, "acme", policy("2"))
    second = save_policy(place, "acme", policy("3"), if_match=first.version)
    for stale in (first.version, ABSENT):
        with pytest.raises(PolicyConflictError, match=second.version) as caught:
            save_policy(place, "acme", policy("4"), if_match=stale)
        assert caught.value.exit_code == 4
    assert place.read("acme-duplication-policy.json") == policy("3")
    assert [data for _, data in history(place, "acme")] == [policy("2"), policy("3")]


def test_what_is_no_policy_is_not_saved(place: PolicyLocation) -> None:
    for data, account in ((b"{", "acme"), (b"\xff", "acme"), (policy("2"), "../acme"), (policy("2"), "")):
        with pytest.raises(PolicyError):
            save_policy(place, account, data)
    with pytest.raises(PolicyError, match="line 1, column 2"):
        save_policy(place, "acme", b'{"unknown": 1}')
    assert place.read(ACCOUNTS_FILE) is None


def test_an_edit_by_hand_and_an_undo_are_kept_in_the_history(place: PolicyLocation) -> None:
    save_policy(place, "acme", policy("2"))
    place.write("acme-duplication-policy.json", policy("3"))
    saved = save_policy(place, "acme", policy("2"), if_match=version_of(policy("3")))
    assert saved.version == version_of(policy("2"))
    assert history(place, "acme") == [(1, policy("2")), (2, policy("3")), (3, policy("2"))]


def test_of_many_who_save_over_the_same_version_exactly_one_does(place: PolicyLocation) -> None:
    first = save_policy(place, "acme", policy("0"))

    def save(number: int) -> bool:
        try:
            save_policy(place, "acme", policy(str(number)), if_match=first.version)
        except PolicyConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(save, range(1, 17))) == 1
    assert len(history(place, "acme")) == 2


def test_accounts_that_are_saved_and_withdrawn_at_once_are_all_listed_as_they_were_left(place: PolicyLocation) -> None:
    for number in range(4):
        save_policy(place, f"gone-{number}", policy("2"))
    with ThreadPoolExecutor(8) as pool:
        for number in range(4):
            pool.submit(save_policy, place, f"new-{number}", policy("2"))
            pool.submit(withdraw_policy, place, f"gone-{number}")
    assert sorted(PolicyRepository(place).load().by_account) == [f"new-{number}" for number in range(4)]


def test_the_lock_of_a_process_that_was_killed_holds_off_the_next_for_a_while_only() -> None:
    store, clock = MemoryStore(), VirtualClock()
    place = SpaceLocation(store, "policies", clock)
    dead = place.saving()
    dead.__enter__()
    save_policy(place, "acme", policy("2"))
    assert clock.monotonic() == pytest.approx(LOCK_SECONDS, abs=1)
    assert list(PolicyRepository(place).load().by_account) == ["acme"]
    assert [entry.content_id for entry in store.entries("policies") if entry.content_id.endswith("lock")] == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    stores = [f'[stores.{name}]\nurl = "file://{{data}}/stores/{name}"\n' for name in "12"]
    (data / "millstream.toml").write_text('[mill]\npolicies = "1:x-policies"\n' + "".join(stores))
    return data


def test_the_command_line_saves_shows_and_plans(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def millstream(*words: str) -> tuple[int, str]:
        code = run([*words, "--data", str(data)])
        return code, capfd.readouterr().out

    file = tmp_path / "policy.json"
    file.write_bytes(policy("2"))
    (tmp_path / "a.txt").write_bytes(b"grain")
    assert millstream("mill", "policy", "save", "local", str(file), "--if-match", "none")[0] == 0
    assert millstream("mill", "policy", "save", "local", str(file), "--if-match", "none")[0] == 4
    shown: dict[str, Any] = json.loads(millstream("mill", "policy", "show", "--json")[1])
    assert (shown["account"], shown["version"]) == ("local", version_of(policy("2")))
    assert (data / "stores" / "1" / "x-policies" / "local-duplication-policy.json").read_bytes() == policy("2")
    for store in "12":
        assert millstream("store", "put", store, "space", str(tmp_path / "a.txt"), "--create")[0] == 0
    assert millstream("store", "delete", "2", "space", "a.txt")[0] == 0
    code, printed = millstream("mill", "policy", "plan", "local", str(file))
    assert code == 0
    assert "space 1 → 2: 1 to copy, 0 to compare, 0 to delete, 0 unchanged; 5 B to read" in printed
    assert "in all 1 space: 1 to copy, 0 to compare, 0 to delete, 0 unchanged; 5 B to read" in printed
    file.write_bytes(b"{}")
    assert "space 1 → 2: no longer updated" in millstream("mill", "policy", "plan", "local", str(file))[1]
    assert millstream("mill", "duplicate")[0] == 0
    assert (data / "stores" / "2" / "space" / "a.txt").read_bytes() == b"grain"


def test_a_policy_that_was_withdrawn_is_not_in_force_until_it_is_saved_again(place: PolicyLocation) -> None:
    first = save_policy(place, "acme", policy("2"))
    save_policy(place, "other", policy("2"))
    with pytest.raises(PolicyConflictError):
        withdraw_policy(place, "acme", if_match=ABSENT)
    assert list(PolicyRepository(place).load().by_account) == ["acme", "other"]
    withdraw_policy(place, "acme", if_match=first.version)
    assert list(PolicyRepository(place).load().by_account) == ["other"]
    assert saved_accounts(place) == ["acme", "other"]
    assert [data for _, data in history(place, "acme")] == [policy("2")]
    with pytest.raises(PolicyError, match=r"no policy of account .* is in force"):
        withdraw_policy(place, "acme")
    save_policy(place, "acme", policy("2"), if_match=first.version)
    assert list(PolicyRepository(place).load().by_account) == ["other", "acme"]


def test_a_policy_is_withdrawn_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.json").write_bytes(policy("2"))
    data = ["--data", str(tmp_path / "node")]
    assert run(["mill", "policy", "save", "acme", str(tmp_path / "policy.json"), *data]) == 0
    assert run(["mill", "policy", "withdraw", "acme", "--if-match", "none", *data]) == 4
    assert run(["mill", "policy", "withdraw", "acme", *data]) == 0
    assert "policy withdrawn" in capsys.readouterr().out
    assert run(["mill", "policy", "show", *data]) == 0
    assert capsys.readouterr().out == ""
