"""Which sources, copies and folders ``millstream protect`` takes, and which it refuses before anything is written."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tomllib
from pathlib import Path

import pytest
from protect_desk import Desk, verified
from serving_nodes import open_node

from millstream.cli.main import run
from millstream.cli.protect_setup import SetupError, Stores, Wanted, find_stores, set_up, wanted
from millstream.mill.policies.policy import Policy, encode_policy
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.mill.policies.saving import save_policy
from millstream.settings import Settings, StoreSettings, load_settings
from millstream.stores import folder_url


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_source_that_is_missing_sets_up_nothing(desk: Desk, arguments: tuple[str, ...]) -> None:
    shutil.rmtree(desk.photos)
    assert desk.protect(*arguments)[0] == 1
    assert not desk.data.exists() and not any(disk.exists() for disk in desk.disks)


def test_a_source_whose_path_is_no_text_can_be_named_by_its_url(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "file").write_bytes(b"grain")
    asked = wanted(folder.as_uri(), [str(tmp_path / "copy")], "photos", None, tmp_path / "node")
    assert asked.source == str(folder_url(folder, "photos"))


def test_places_that_lie_in_one_another_or_are_named_twice_are_refused(desk: Desk, tmp_path: Path) -> None:
    def code(*arguments: str) -> int:
        return desk.call("protect", str(desk.photos), *arguments)[0]

    assert code("--to", str(desk.photos / "copy")) == 2
    assert code("--to", str(tmp_path)) == 2  # the copy would be the source
    assert code("--to", str(desk.disks[0]), "--to", f"{desk.disks[0]}/") == 2
    assert run(["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", str(desk.photos / "node")]) == 2
    assert not desk.data.exists() and sorted(path.name for path in desk.photos.iterdir()) == ["2013"]


def test_both_spellings_of_a_place_that_is_named_twice_are_in_the_error(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    one, two = map(str, desk.disks[:2])
    places = ["--to", one, "--to", two, "--to", f"{one}/"]
    assert run(["protect", str(desk.photos), *places, "--data", str(desk.data)]) == 2
    assert f"--to {one} and --to {one}/ are the same place" in capsysbinary.readouterr().err.decode()


def test_a_copy_that_would_lie_in_the_source_names_the_folder_to_change(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["protect", str(desk.photos), "--to", str(desk.photos / "copy"), "--data", str(desk.data)]) == 2
    assert "would lie in the source" in (text := capsysbinary.readouterr().err.decode())
    assert "choose another folder for the copy" in text


@pytest.mark.parametrize("scheme", ["cas", "folder"])
def test_a_store_that_cannot_hold_copies_is_refused_before_anything_is_written(desk: Desk, scheme: str) -> None:
    copy = desk.photos / "copy"
    assert desk.call("protect", str(desk.photos), "--to", f"{scheme}://{copy}")[0] == 2
    assert not copy.exists() and not desk.data.exists()


def test_a_copy_among_the_files_of_another_copy_is_refused(desk: Desk) -> None:
    one = desk.disks[0]
    assert desk.call("protect", str(desk.photos), "--to", str(one), "--to", str(one / "photos" / "second"))[0] == 2
    assert not desk.data.exists() and not one.exists()


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("vault/p", "vault/p?region=eu-central-1", "are the same place"),
        ("vault/p?profile=a", "vault/p/?profile=b", "are the same place"),
        ("vault?endpoint=https://s3.example", "vault?credentials=B&endpoint=https://s3.example/", "are the same place"),
        (
            "vault/p",
            "vault/p/photos?profile=a",
            "would lie in the copy of photos at s3://vault/p: choose another prefix",
        ),
    ],
)
def test_copies_in_one_bucket_that_is_reached_in_two_ways_are_refused(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes], one: str, other: str, words: str
) -> None:
    assert (
        run(["protect", str(desk.photos), "--to", f"s3://{one}", "--to", f"s3://{other}", "--data", str(desk.data)])
        == 2
    )
    assert words in capsysbinary.readouterr().err.decode() and not desk.data.exists()


def test_a_known_bucket_is_no_second_copy_when_it_is_reached_in_another_way(tmp_path: Path) -> None:
    known = "s3://vault/p?profile=a&endpoint=https://s3.example&requests=50"
    settings = Settings(data=str(tmp_path / "node"), stores={"p": StoreSettings(known)})

    def stores(to: str) -> Stores:
        return find_stores(settings, Wanted("folder:///photos?space=photos", "photos", [to], False, False))

    for to in (
        known,
        "s3://vault/p/?endpoint=https://s3.example",
        "s3://vault/p?endpoint=https://s3.example/&profile=a",
    ):
        assert stores(to).destinations == ["p"], to
    with pytest.raises(
        SetupError, match=r"is the store 'p' of the settings .* \(profile=b\): give that URL, or change"
    ):
        stores("s3://vault/p?endpoint=https://s3.example&profile=b")
    for to in ("s3://vault/p", "s3://vault/q?endpoint=https://s3.example", "s3://vault/p?endpoint=https://s4.example"):
        assert stores(to).added.keys() == {"photos", *stores(to).destinations} and stores(to).destinations != ["p"], to


def test_an_unset_variable_does_not_name_the_current_folder(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert desk.call("protect", str(desk.photos), "--to", "")[0] == 2
    assert desk.call("protect", "", "--to", str(desk.disks[0]))[0] == 2
    assert not any(here.iterdir()) and not desk.data.exists()


def test_the_source_under_a_second_mount_is_still_the_source(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = desk.disks[0]
    mount.mkdir()
    same = Path.samefile

    def samefile(path: Path, other: Path) -> bool:  # as the kernel answers for a bind mount of the photos
        return same(desk.photos if path == mount else path, other)

    monkeypatch.setattr(Path, "samefile", samefile)
    assert desk.call("protect", str(desk.photos), "--to", str(mount / "copies"))[0] == 2
    assert not any(mount.iterdir()) and not desk.data.exists()


def _mounted(desk: Desk, monkeypatch: pytest.MonkeyPatch, seen: Path, at: Path) -> None:
    """Let the kernel say that the folder *seen* is also mounted *at*."""
    at.mkdir(exist_ok=True)
    table = desk.photos.parent / "mountinfo"
    lines = ["27 1 254:0 / / rw - ext4 /dev/vda rw", f"90 27 254:0 {seen} {at} rw - ext4 /dev/vda rw", ""]
    table.write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr("millstream.core.mounts._MOUNTS", table)


def test_a_folder_of_the_source_under_a_second_mount_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.photos / "2013", desk.disks[0])
    assert desk.protect()[0] == 2
    assert not any(desk.disks[0].iterdir()) and not desk.data.exists() and not desk.disks[1].exists()


def test_a_destination_that_is_mounted_below_the_source_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.disks[0], desk.photos / "mounted")
    assert desk.protect()[0] == 2
    assert not desk.data.exists() and not desk.disks[0].exists()


def test_one_disk_under_two_mounts_is_one_copy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.disks[0], desk.disks[1])
    assert desk.protect()[0] == 2
    assert not desk.data.exists() and not any(desk.disks[1].iterdir())


@pytest.mark.parametrize(("data", "disk"), [("node", "node/copies"), ("disk/node", "disk"), ("photos/node", "disk")])
def test_copies_and_the_folder_of_the_node_do_not_lie_in_one_another(
    desk: Desk, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], data: str, disk: str
) -> None:
    arguments = ["protect", str(desk.photos), "--to", str(tmp_path / disk), "--data", str(tmp_path / data)]
    assert run(arguments) == 2
    assert b"choose another" in capsysbinary.readouterr().err
    assert not (tmp_path / data).exists() and not (tmp_path / disk).exists()


def test_a_second_folder_of_the_same_name_needs_another_space(desk: Desk, tmp_path: Path) -> None:
    desk.protect()
    other = tmp_path / "elsewhere" / "photos"
    other.mkdir(parents=True)
    (other / "a").write_bytes(b"a")
    to = ("--to", str(desk.disks[0]))
    assert desk.call("protect", str(other), *to)[0] == 2
    code, report = desk.call("protect", str(other), *to, "--space", "more")
    assert (code, report["space"], verified(report)) == (0, "more", [1])
    assert desk.protect()[0] == 0


def test_a_second_run_at_the_same_time_is_refused_by_name(desk: Desk) -> None:
    desk.protect()
    with (desk.data / "protect.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert desk.protect()[0] == 4


def test_a_run_that_is_refused_because_of_another_one_sets_nothing_up(desk: Desk, tmp_path: Path) -> None:
    desk.protect()
    before = desk.written()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_bytes(b"a")
    with (desk.data / "protect.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert desk.call("protect", str(tmp_path / "other"), "--to", str(tmp_path / "disk3"))[0] == 4
    assert desk.written() == before
    assert not (tmp_path / "disk3").exists()


def test_stores_that_another_run_added_meanwhile_stay(desk: Desk) -> None:
    settings, _ = load_settings({"data": str(desk.data)}, environment={})
    to = [str(desk.disks[1])]
    asked = wanted(str(desk.photos / "2013"), to, None, None, desk.data)
    desk.protect()  # while that one was about to begin
    set_up(settings, None, asked)
    with open_node(desk.data) as node:
        assert {*node.settings.stores} == {"photos", "disk1", "disk2", "2013"}
        assert {*node.policies.current.by_account["local"].spaces} == {"photos", "2013"}


def test_a_policy_that_is_saved_meanwhile_is_not_replaced(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    load = PolicyRepository.load

    def saved_meanwhile(repository: PolicyRepository) -> Policies:
        policies = load(repository)
        monkeypatch.undo()
        with open_node(desk.data) as node:
            save_policy(node.policies.location, "local", encode_policy(Policy("local", ignored=("drafts",))))
        return policies

    desk.data.mkdir()
    monkeypatch.setattr(PolicyRepository, "load", saved_meanwhile)
    assert desk.protect()[0] == 4
    assert desk.protect()[0] == 0
    with open_node(desk.data) as node:
        policy = node.policies.current.by_account["local"]
    assert (policy.ignored, {*policy.spaces}) == (("drafts",), {"photos"})


def test_spaces_of_the_system_and_files_are_refused(desk: Desk) -> None:
    assert desk.protect("--space", "x-photos")[0] == 2
    assert desk.call("protect", str(desk.photos / "2013" / "1.jpg"), "--to", str(desk.disks[0]))[0] == 1
    assert not desk.data.exists()


def test_stores_are_added_to_the_settings_file_of_the_environment(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[mill]\nworkers = 2\n", "utf-8")
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(file))
    for _ in range(2):
        code, report = desk.protect()
        assert (code, verified(report)) == (0, [6, 6])
    assert {*tomllib.loads(file.read_text("utf-8"))["stores"]} == {"photos", "disk1", "disk2"}
    assert not (desk.data / "millstream.toml").exists()
    assert desk.call("mill", "duplicate")[0] == 0


def test_a_folder_below_the_home_folder_has_one_settings_file(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    arguments = ["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", "~/node"]
    assert [run(arguments) for _ in range(2)] == [0, 0]
    assert (desk.data / "millstream.toml").read_text("utf-8").count('[stores."photos"]') == 1


def test_a_settings_file_that_takes_no_tables_of_stores_stays_as_it_is(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = 'stores = {primary = {url = "file://{data}/one"}}\n'
    desk.data.mkdir()
    (desk.data / "millstream.toml").write_text(text, "utf-8")
    assert run(["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", str(desk.data)]) == 2
    assert b"nothing was changed" in capsysbinary.readouterr().err
    assert (desk.data / "millstream.toml").read_text("utf-8") == text
    assert not desk.disks[0].exists()


def test_a_settings_file_of_the_system_keeps_its_link_and_its_mode(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "etc.toml"
    file.write_text("[mill]\nworkers = 2\n", "utf-8")
    file.chmod(0o640)
    desk.data.mkdir()
    (desk.data / "millstream.toml").symlink_to(file)
    assert desk.protect()[0] == 0
    assert (desk.data / "millstream.toml").is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "[stores.photos]" in file.read_text("utf-8").replace('"', "")
