from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from millstream.anchoring.errors import LedgerError, LedgerKeyError
from millstream.anchoring.transparency.keys import MAX_SIGNING_KEYS, LedgerKeys, LedgerSigner
from millstream.core.clock import VirtualClock
from support.commands import run_command

DAY = 86_400_000_000
ROOT = bytes(32)


def made(folder: Path, clock: VirtualClock | None = None, ledger: str = "anchors") -> LedgerKeys:
    return LedgerKeys(folder / "keys", ledger, clock or VirtualClock())


def test_a_key_is_made_at_first_use_with_an_origin_of_its_own_and_for_its_owner_alone(tmp_path: Path) -> None:
    origins = set()
    for ledger in ("anchors", "reports", "registry"):
        keys = made(tmp_path, ledger=ledger)
        signer = LedgerSigner(keys)
        assert signer.origin.startswith("millstream.invalid/") and signer.origin.endswith(f"/{ledger}")
        assert signer.origin == LedgerSigner(made(tmp_path, ledger=ledger)).origin
        assert keys.path.stat().st_mode & 0o777 == 0o600
        origins.add(signer.origin)
    assert len(origins) == 3
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_several_that_sign_first_at_the_same_time_share_one_key(tmp_path: Path) -> None:
    found, gate = list[str](), threading.Barrier(6)

    def use() -> None:
        gate.wait()
        found.append(LedgerSigner(made(tmp_path)).origin)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1


def test_both_keys_sign_during_the_overlap_and_then_the_old_private_key_is_gone(tmp_path: Path) -> None:
    clock = VirtualClock()
    keys = made(tmp_path, clock)
    old = keys.create("example.org/anchors")
    signer = LedgerSigner(keys)
    before = signer.sign(1, ROOT)
    new = keys.rotate(30 * DAY)
    assert [key for key, _ in keys.signing_until()] == [new, old]
    assert [until for _, until in keys.signing_until()] == [None, clock.now() + 30 * DAY]
    assert not signer.is_current(before)
    both = signer.sign(1, ROOT)
    assert both.count("— example.org/anchors ".encode()) == 2 and signer.is_current(both)
    clock.advance(30 * DAY)
    assert signer.sign(2, ROOT).count("— ".encode()) == 1
    assert [str(key) for key in keys.retired()] == json.loads(keys.path.read_bytes())["retired"] == [str(old)]
    assert keys.path.read_text().count("PRIVATE+KEY") == 1
    assert [signer.read(each).size for each in (before, both)] == [1, 1]
    assert signer.is_current(both)


def test_no_more_keys_sign_at_once_than_a_note_has_room_for(tmp_path: Path) -> None:
    keys = made(tmp_path, VirtualClock())
    keys.create("example.org/anchors")
    for _ in range(MAX_SIGNING_KEYS - 1):
        keys.rotate(DAY)
    with pytest.raises(LedgerKeyError, match=r"already has 8 signing keys: wait until .*ends the overlap of all"):
        keys.rotate(DAY)
    signer = LedgerSigner(keys)
    assert signer.is_current(signer.sign(1, ROOT))
    keys.rotate(0)
    assert signer.sign(1, ROOT).count("— ".encode()) == 1


def test_a_key_file_does_not_grow_beyond_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = made(tmp_path, VirtualClock())
    keys.create("example.org/anchors")
    monkeypatch.setattr("millstream.anchoring.transparency.keys.MAX_KEY_FILE_BYTES", keys.path.stat().st_size + 100)
    keys.rotate(0)
    before = keys.path.read_bytes()
    with pytest.raises(LedgerKeyError, match="remove old verifier keys from its member 'retired'"):
        keys.rotate(0)
    assert keys.path.read_bytes() == before


def test_a_lost_key_is_replaced_under_the_same_origin(tmp_path: Path) -> None:
    keys = made(tmp_path)
    lost, signer = keys.create("example.org/anchors"), LedgerSigner(keys)
    checkpoint = signer.sign(5, ROOT)
    keys.path.unlink()
    keys.create("example.org/anchors")
    with pytest.raises(LedgerError, match="--replaces KEY"):
        signer.read(checkpoint)
    keys.path.unlink()
    assert keys.create(replaces=[lost]).name == "example.org/anchors"
    assert signer.read(checkpoint).size == 5
    with pytest.raises(LedgerKeyError, match="only one origin, but --origin and --replaces name"):
        made(tmp_path, ledger="reports").create("example.org/reports", replaces=[lost])


def test_a_key_file_that_others_can_read_or_that_is_damaged_is_refused_without_its_content(tmp_path: Path) -> None:
    keys = made(tmp_path)
    keys.create("example.org/anchors")
    private = json.loads(keys.path.read_bytes())["keys"][0]["private_key"]
    keys.path.chmod(0o604)
    with pytest.raises(LedgerKeyError, match="chmod 600"):
        keys.signing()
    keys.path.chmod(0o440)  # as secrets are mounted
    assert len(keys.signing()) == 1
    keys.path.chmod(0o600)
    whole = keys.path.read_bytes()
    for damaged in (
        whole[:-20],
        whole.replace(b"anchors+", b"other+"),
        b"",
        b"{}",
        whole.replace(b"null", b"5"),
        b"\xff",
        whole.replace(b'"origin"', b'"%s"' % private.encode()),
        whole.replace(b'"retired": []', b'"retired": ["%s"]' % private.encode()),
        whole.replace(b'"retired": []', b'"retired": ["x%s"]' % private.removeprefix("PRIVATE+KEY+").encode()),
    ):
        assert damaged != whole
        keys.path.write_bytes(damaged)
        with pytest.raises(LedgerKeyError, match="restore the file from a backup") as error:
            keys.signing()
        assert private[-40:-4] not in str(error.value)
        assert "`$" not in str(error.value) and "JSON is malformed" not in str(error.value)


def test_only_a_checkpoint_of_an_unknown_key_is_blamed_on_the_key_file(tmp_path: Path) -> None:
    (keys, signer), (_, other) = ((made(tmp_path / name), LedgerSigner(made(tmp_path / name))) for name in "ab")
    signed = signer.sign(3, ROOT)
    with pytest.raises(LedgerError, match=rf"not signed by a key in {keys.path}: .*\. Restore that file from a backup"):
        signer.read(other.sign(3, ROOT))
    for damaged, reason in (
        (signed[:-20], "truncated|base64"),
        (signed.replace(b"\n3\n", b"\n4\n"), "does not match the signed text"),
        (signed.rpartition(b"\n\n")[0], "no empty line"),
    ):
        with pytest.raises(
            LedgerError, match=r"cannot use the checkpoint of the ledger anchors \(in the node's"
        ) as error:
            signer.read(damaged)
        assert re.search(reason, str(error.value)) and "The key file is not the cause" in str(error.value)
        assert str(error.value).endswith("node.database) from a backup")
        with pytest.raises(LedgerError, match=r"anchors \(file 'checkpoint' in /backup/anchors\): ") as error:
            signer.read(damaged, "/backup/anchors")
        assert "delete the file: `millstream anchor checkpoint --ledger anchors` writes it again" in str(error.value)
    with pytest.raises(LedgerError, match="If /backup/anchors belongs to another node, correct the setting"):
        signer.read(other.sign(3, ROOT), "/backup/anchors")


def test_a_key_file_that_is_a_link_stays_one_and_the_file_behind_it_gets_the_new_key(tmp_path: Path) -> None:
    keys, vault = made(tmp_path), tmp_path / "vault" / "anchors.json"
    keys.create("example.org/anchors")
    vault.parent.mkdir()
    keys.path.rename(vault)
    keys.path.symlink_to(vault)
    new = keys.rotate(DAY)
    assert keys.path.is_symlink() and vault.stat().st_mode & 0o777 == 0o600
    assert json.loads(vault.read_bytes())["keys"][0]["private_key"].startswith(f"PRIVATE+KEY+{new.name}+")
    assert made(tmp_path).signing_until()[0][0] == new


def test_the_commands_create_show_and_rotate_keys(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "node"))
    code, created, _ = run_command("anchor", "key", "create", "--origin", "example.org/r", "--ledger", "reports", *data)
    assert (code, created.startswith("example.org/r+")) == (0, True)
    code, _, err = run_command("anchor", "key", "create", "--ledger", "reports", *data)
    assert (code, "already has a key" in err) == (2, True)
    code, _, err = run_command("anchor", "key", "show", *data)
    assert (code, "millstream anchor key create --ledger anchors" in err) == (2, True)
    code, rotated, err = run_command("anchor", "key", "rotate", "--ledger", "reports", "--overlap", "2h", *data)
    assert (code, err) == (0, "the previous key signs for 2 h more\n")
    code, out, _ = run_command("anchor", "key", "show", "--ledger", "reports", *data)
    assert (code, out) == (0, rotated + created)
    shown = json.loads(run_command("anchor", "key", "show", "--ledger", "reports", "--json", *data).out)
    assert (shown["origin"], shown["retired"]) == ("example.org/r", [])
    assert [each["key"] + "\n" for each in shown["signing"]] == [rotated, created]


def test_the_setting_names_another_folder_for_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_ANCHORING__KEY_FOLDER", str(tmp_path / "secrets"))
    assert run_command("anchor", "key", "create", "--data", str(tmp_path / "node")).code == 0
    assert (tmp_path / "secrets" / "anchors.json").exists() and not (tmp_path / "node" / "keys").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file in its place")
    with pytest.raises(LedgerKeyError, match=r"cannot write the key of the ledger anchors to .*keys/anchors.json"):
        made(tmp_path).signing()
