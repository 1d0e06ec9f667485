"""Bags and lists of checksums, beside the programs of others: ``bagit`` of the Library of Congress, ``sha256sum``."""

from __future__ import annotations

import functools
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bagit
import pytest

from millstream.cli.main import run
from millstream.stores import FolderStore, LocalStore
from millstream.stores.bags import BagItem, check_name
from millstream.testing.damage import flip_bit

S = "letters"
NAMES = ["a.txt", "2013/b.jpg", ".hidden", "50%", "caf%E9", "größe/日本.txt", "with space", "back\\slash", "empty"]
COUNT = len(NAMES) + 1

Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def command(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    def call(*arguments: str) -> tuple[int, Any]:
        code = run(["store", *arguments, "--data", str(tmp_path / "node"), "--json"])
        lines = capsysbinary.readouterr().out.splitlines()
        return code, json.loads(lines[-1]) if lines else None

    return call


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    made.create_space(S)
    for name in NAMES:
        data = b"" if name == "empty" else name.encode() * 3
        made.put(S, name, io.BytesIO(data), mimetype="text/html", properties={"owner": name})
    made.put(S, "plain.jpg", io.BytesIO(b"of no type"))
    return made


def described(store: LocalStore) -> dict[str, Any]:
    infos = [store.info(S, entry.content_id) for entry in store.entries(S)]
    return {info.content_id: (info.checksum(), info.mimetype, dict(info.properties)) for info in infos}


def test_an_exported_bag_is_valid_for_others_and_comes_back_the_same(
    command: Command, store: LocalStore, tmp_path: Path
) -> None:
    code, report = command("export", store.url, S, "--bagit", str(tmp_path / "bag"))
    assert (code, report["items"], report["failed"]) == (0, COUNT, {})
    assert bagit.Bag(str(tmp_path / "bag")).validate()
    assert (tmp_path / "bag" / "data" / "2013" / "b.jpg").read_bytes() == b"2013/b.jpg" * 3
    copy = (tmp_path / "copy").as_uri()
    assert command("import", copy, S, "--create", "--bagit", str(tmp_path / "bag"))[0] == 0
    assert described(LocalStore(tmp_path / "copy")) == described(store)
    code, report = command("import", copy, S, "--bagit", str(tmp_path / "bag"))
    assert (code, report["imported"], report["present"]) == (0, 0, COUNT)


def test_links_and_empty_folders_pass_through_a_bag(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "link").symlink_to("../else\nwhere")
    (source / "file").write_bytes(b"x")
    os.utime(source / "file", ns=(0, 1_600_000_000_123_456_789))
    url = f"folder://{source}?space={S}"
    assert command("export", url, S, "--bagit", str(tmp_path / "bag"))[1]["items"] == 3
    assert bagit.Bag(str(tmp_path / "bag")).is_valid()
    assert command("import", (tmp_path / "copy").as_uri(), S, "--create", "--bagit", str(tmp_path / "bag"))[0] == 0
    copy, folder = LocalStore(tmp_path / "copy"), FolderStore(source, space=S)
    for entry in folder.entries(S):
        with copy.open(S, entry.content_id) as there, folder.open(S, entry.content_id) as here:
            assert there.read() == here.read()
        assert copy.info(S, entry.content_id).properties == folder.info(S, entry.content_id).properties


def test_a_bag_of_the_bagit_package_is_imported(command: Command, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    (bag / "photos").mkdir(parents=True)
    (bag / "photos" / "a.jpg").write_bytes(b"a")
    (bag / "b").write_bytes(b"")
    bagit.make_bag(str(bag), {"Contact-Name": "Ann"}, checksums=["md5", "sha512"])
    code, report = command("import", (tmp_path / "to").as_uri(), S, "--create", "--prefix", "in/", "--bagit", str(bag))
    store = LocalStore(tmp_path / "to")
    assert (code, report["imported"]) == (0, 2)
    assert [entry.content_id for entry in store.entries(S)] == ["in/b", "in/photos/a.jpg"]
    assert store.info(S, "in/photos/a.jpg").mimetype == "image/jpeg"


def test_what_differs_in_the_store_is_kept_unless_told_otherwise(
    command: Command, store: LocalStore, tmp_path: Path
) -> None:
    command("export", store.url, S, "--bagit", str(tmp_path / "bag"))
    store.put(S, "a.txt", io.BytesIO(b"newer"))
    code, report = command("import", store.url, S, "--bagit", str(tmp_path / "bag"))
    assert (code, report["different"], report["present"]) == (1, ["a.txt"], COUNT - 1)
    assert command("import", store.url, S, "--overwrite", "--bagit", str(tmp_path / "bag"))[1]["imported"] == 1


def damage_payload(bag: Path) -> None:
    (bag / "data" / "a.txt").write_bytes(b"A.txt" * 3)


def damage_tag_file(bag: Path) -> None:
    (bag / "bag-info.txt").write_text((bag / "bag-info.txt").read_text().replace("letters", "Letters"))


def damage_manifest(bag: Path) -> None:
    path = bag / "manifest-sha256.txt"
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[1:]), "utf-8")


def remove_file(bag: Path) -> None:
    (bag / "data" / "a.txt").unlink()


def add_file(bag: Path) -> None:
    (bag / "data" / "more").write_bytes(b"")


def lead_out(bag: Path) -> None:
    (bag / "data" / "a.txt").unlink()
    (bag / "data" / "a.txt").symlink_to("/etc/hostname")


def name_outside(bag: Path) -> None:
    with (bag / "manifest-sha256.txt").open("a", encoding="utf-8") as file:
        file.write(f"{'0' * 64}  ../../outside\n")


def fetch_from_elsewhere(bag: Path) -> None:
    (bag / "data" / "a.txt").unlink()
    (bag / "fetch.txt").write_text("https://example.org/a.txt 15 data/a.txt\n")


DAMAGES = [
    damage_payload, damage_tag_file, damage_manifest, remove_file, add_file, lead_out, name_outside,
    fetch_from_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_is_imported_of_a_bag_that_is_not_valid(
    command: Command, store: LocalStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    command("export", store.url, S, "--bagit", str(tmp_path / "bag"))
    damage(tmp_path / "bag")
    assert command("import", (tmp_path / "to").as_uri(), S, "--create", "--bagit", str(tmp_path / "bag"))[0] == 2
    assert not (tmp_path / "to").exists()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The URL of a web server with the file ``a.txt``."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.txt").write_bytes(b"a.txt" * 3)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/a.txt"
        server.shutdown()


@pytest.mark.parametrize(("size", "code"), [("15", 0), ("14", 2), ("16", 2), ("-", 2)])
def test_files_of_elsewhere_are_fetched_where_that_is_allowed(
    command: Command, store: LocalStore, tmp_path: Path, elsewhere: str, size: str, code: int
) -> None:
    bag = tmp_path / "bag"
    command("export", store.url, S, "--bagit", str(bag))
    (bag / "data" / "a.txt").unlink()
    (bag / "fetch.txt").write_text(f"{elsewhere} {size} data/a.txt\n")
    listed = bagit.Bag(str(bag))
    listed.save()  # the tag manifests name fetch.txt now
    arguments = ["import", (tmp_path / "to").as_uri(), S, "--create", "--bagit", str(bag)]
    assert command(*arguments)[0] == 2
    assert command(*arguments, "--fetch")[0] == code
    assert (tmp_path / "to").exists() == (code == 0)


def test_a_file_that_cannot_be_fetched_is_named(
    command: Command, store: LocalStore, tmp_path: Path, elsewhere: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    bag, url = tmp_path / "bag", elsewhere.replace("a.txt", "absent")
    command("export", store.url, S, "--bagit", str(bag))
    (bag / "data" / "a.txt").unlink()
    (bag / "fetch.txt").write_text(f"{url} 15 data/a.txt\n")
    bagit.Bag(str(bag)).save()
    capsysbinary.readouterr()
    arguments = ["import", (tmp_path / "to").as_uri(), S, "--create", "--bagit", str(bag), "--fetch"]
    assert run(["store", *arguments, "--data", str(tmp_path / "node")]) == 2
    error = capsysbinary.readouterr().err.decode()
    assert f"cannot download {url} to {bag}/data/a.txt: HTTP Error 404: File not found; try again" in error


def test_an_export_resumes_and_never_mixes_with_other_files(
    command: Command, store: LocalStore, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    bag = tmp_path / "bag"
    (bag / "data").mkdir(parents=True)
    (bag / "data" / "a.txt").write_bytes(b"a.txt" * 3)
    (bag / "data" / "stranger").write_bytes(b"")
    assert command("export", store.url, S, "--bagit", str(bag))[0] == 2
    (bag / "data" / "stranger").unlink()
    (bag / "bagit.txt").unlink()
    assert command("export", store.url, S, "--bagit", str(bag))[0] == 0
    assert bagit.Bag(str(bag)).is_valid()
    assert run(["store", "export", store.url, S, "--bagit", str(bag), "--data", str(tmp_path / "node")]) == 2
    assert f"{bag} is already a bag: export into another folder" in capsysbinary.readouterr().err.decode()


def test_a_damaged_item_is_named_and_not_exported(command: Command, store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "store" / S / "a.txt").write_bytes(b"A.txt" * 3)
    code, report = command("export", store.url, S, "--bagit", str(tmp_path / "bag"))
    assert (code, list(report["failed"]), report["items"]) == (1, ["a.txt"], COUNT - 1)
    assert bagit.Bag(str(tmp_path / "bag")).is_valid()
    code, report = command("import", (tmp_path / "to").as_uri(), S, "--create", "--bagit", str(tmp_path / "bag"))
    assert (code, report["imported"]) == (0, COUNT - 1)


def test_a_link_whose_target_is_not_utf_8_is_named_and_not_exported(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "odd").symlink_to(os.fsdecode(b"caf\xe9"))
    (source / "file").write_bytes(b"x")
    code, report = command("export", f"folder://{source}?space={S}", S, "--bagit", str(tmp_path / "bag"))
    assert (code, report["items"]) == (1, 1)
    assert report["failed"] == {"odd": "its target b'caf\\xe9' is not UTF-8, as a bag requires"}
    assert bagit.Bag(str(tmp_path / "bag")).is_valid()


_KILLED = """
import os, signal, sys
import bagit
from millstream.cli.main import run

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

bagit._make_tag_file = die  # the payload's manifest is written by then
sys.exit(run(sys.argv[1:]))
"""


def test_an_export_that_is_killed_while_the_bag_is_finished_resumes(
    command: Command, store: LocalStore, tmp_path: Path
) -> None:
    bag = tmp_path / "bag"
    export = ["export", store.url, S, "--bagit", str(bag)]
    arguments = ["store", *export, "--data", str(tmp_path / "node")]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *arguments], capture_output=True, check=False)
    assert (killed.returncode, (bag / "manifest-sha256.txt").exists()) == (-signal.SIGKILL, True)
    code, report = command(*export)
    assert (code, report["items"], report["failed"]) == (0, COUNT, {})
    assert bagit.Bag(str(bag)).validate()
    names = {"bagit.txt", "bag-info.txt", "data", "manifest-sha256.txt", "millstream-items.jsonl"}
    assert {path.name for path in bag.iterdir()} == {*names, "tagmanifest-sha256.txt"}
    assert command(*export)[0] == 2, "a bag that is finished is left alone"


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a%0Ab", "a%0db", " a", "a ", "a//b", "a/", "../a", "x" * 256])
def test_names_that_a_bag_cannot_hold_are_told(name: str) -> None:
    assert check_name(name)
    assert not check_name("a/.b c%25")
    assert not BagItem("a.jpg", "image/jpeg").is_needed


def test_sha256sum_checks_the_list_beside_a_restored_folder(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in (b"a", b"sub/line\nbreak", b"back\\slash", b"caf\xe9", b"50%"):
        (source / os.fsdecode(name)).write_bytes(name)
    (source / "link").symlink_to("nowhere")
    sums = tmp_path / "SHA256SUMS"
    code, report = command("export", f"folder://{source}?space={S}", S, "--sha256sums", str(sums))
    assert (code, report["items"]) == (0, 5)
    done = subprocess.run(["sha256sum", "--check", "--strict", str(sums)], cwd=source, capture_output=True, check=False)
    assert (done.returncode, done.stdout.count(b": OK")) == (0, 5)


@pytest.mark.parametrize(
    ("prefix", "listed"),
    [("2013/", ["2013/b.jpg", "2013/c\\d\ne.jpg"]), ("2013/b", ["2013/b.jpg"]), ("größe/日", ["größe/日本.txt"])],
)
def test_sha256sum_checks_the_list_of_a_prefix_and_finds_damage(
    command: Command, store: LocalStore, tmp_path: Path, prefix: str, listed: list[str]
) -> None:
    store.put(S, "2013/c\\d\ne.jpg", io.BytesIO(b"odd"))
    sums, back = tmp_path / "SHA256SUMS", tmp_path / "back"
    for name in (*NAMES, "2013/c\\d\ne.jpg"):  # the whole space, of which the list has only a part
        (back / name).parent.mkdir(parents=True, exist_ok=True)
        with store.open(S, name) as item:
            (back / name).write_bytes(item.read())
    code, report = command("export", store.url, S, prefix, "--sha256sums", str(sums))
    size = sum((back / name).stat().st_size for name in listed)
    assert (code, report) == (0, {"items": len(listed), "bytes": size, "failed": {}})

    def check() -> tuple[int, int, int]:
        done = subprocess.run(
            ["sha256sum", "--check", "--strict", str(sums)], cwd=back, capture_output=True, check=False
        )
        return done.returncode, done.stdout.count(b": OK\n"), done.stdout.count(b": FAILED\n")

    assert check() == (0, len(listed), 0)
    flip_bit(back / "a.txt")
    assert check() == (0, len(listed), 0), "an item outside the prefix is not in the list"
    flip_bit(back / listed[-1])
    assert check() == (1, len(listed) - 1, 1)
