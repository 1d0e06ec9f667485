"""Deletions at a source that its copies follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from adopted_folder import SPACE, SourceFolder

from millstream.cli.protect_report import protection_lines
from millstream.mill.adoption.catalog import AdoptionFinding, FindingKind
from millstream.mill.adoption.deletions import Deletions, forget_followed
from millstream.mill.adoption.protection import CopyReport, ProtectionReport
from millstream.mill.adoption.sources import item_of
from millstream.mill.reports.report import CopyFinding
from millstream.stores import SpaceNotFoundError
from millstream.stores.folder.listing import FolderColumns
from millstream.stores.protocol import Entry, EntryKind


@pytest.fixture
def followed(folder: SourceFolder) -> SourceFolder:
    """A folder with the file "z/a" and others, whose deletions are followed."""
    for name, data in (("z/a", b"grain"), ("c", b"another size"), ("d", b"a third size")):
        folder.write(name, data)
    folder.adopt()
    known = folder.catalog.space("here", SPACE)
    folder.catalog.save_space(msgspec.structs.replace(known, deletions=Deletions.FOLLOW))
    return folder


def vanished(folder: SourceFolder) -> list[str]:
    return [item.content_id for item in folder.catalog.vanished("here", SPACE)]


def listed_once_as(folder: SourceFolder, patch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the next listing have only *names*, and the ones after it what is there."""
    whole = list(folder.store.columns(SPACE))
    kept = FolderColumns([], [], [], [])
    for run in whole:
        for row in zip(*run, strict=True):
            if row[0] in names:
                for column, value in zip(kept, row, strict=True):
                    column.append(value)  # type: ignore[arg-type]
    columns, answers = folder.store.columns, [[kept]]
    patch.setattr(folder.store, "columns", lambda *args, **more: answers.pop() if answers else columns(*args, **more))


def test_p8_what_vanished_is_followed(followed: SourceFolder) -> None:
    (followed.root / "z" / "a").unlink()
    (followed.root / "z").rmdir()
    followed.adopt()
    forget_followed(followed.target, SPACE)
    row = followed.manifest.get("here", SPACE, "z/a")
    assert (vanished(followed), row is not None and row.deleted) == ([], True)


def test_p8_a_file_that_was_renamed_while_the_source_was_listed_is_not_taken_for_a_deletion(
    followed: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_once_as(followed, monkeypatch, "c", "d")  # the new name is before what was listed when it was renamed
    (followed.root / "z").rename(followed.root / "b")
    assert followed.adopt().vanished == 1
    forget_followed(followed.target, SPACE)
    assert vanished(followed) == ["z/a"]
    assert followed.adopt().renames == [("z/a", "b/a")]


@pytest.mark.parametrize("kind", [EntryKind.UNREADABLE, EntryKind.NAME_TOO_LONG])
def test_p8_nothing_is_followed_while_a_file_may_have_been_renamed_into_a_folder_that_cannot_be_listed(
    followed: SourceFolder, monkeypatch: pytest.MonkeyPatch, kind: EntryKind
) -> None:
    (followed.root / "z").rename(followed.root / "b")
    (whole,) = followed.store.columns(SPACE)
    closed = FolderColumns([], [], [], [])
    closed.add(Entry("b/", 0, kind=kind))
    for column, values in zip(closed, whole, strict=True):
        column.extend(values[1:])  # type: ignore[arg-type]
    assert whole.content_ids[0] == "b/a"
    with monkeypatch.context() as patch:
        patch.setattr(followed.store, "columns", lambda *_, **__: iter([closed]))
        for _ in range(2):
            followed.adopt()
            assert forget_followed(followed.target, SPACE) == "b/"
            assert vanished(followed) == ["z/a"]
    followed.adopt()
    assert forget_followed(followed.target, SPACE) == ""
    row = followed.manifest.get("here", SPACE, "z/a")
    assert row is not None and not row.deleted  # it is known by its new name now


def test_p8_the_folder_because_of_which_no_deletion_is_followed_is_named() -> None:
    report = ProtectionReport(store="s", space="s", url="file:///s", items=1, vanished=1, unlisted="lost+found/")
    assert [line for line in protection_lines(report, 0) if "lost+found" in line] == [
        "  WAITING  deletions are not followed while 'lost+found/' cannot be listed, because files may have been moved "
        "into it: grant the right to list it, or exclude it with --exclude"
    ]


def test_the_way_to_restore_rotten_items_names_no_copy_that_is_damaged_itself() -> None:
    def advice(*damaged: str) -> str:
        copies = [
            CopyReport(store=name, url="", findings=[CopyFinding("a", "checksum-mismatch", "")] * (name in damaged))
            for name in ("disk1", "disk2")
        ]
        rot = AdoptionFinding(
            store="s", space="s", content_id="a", kind=FindingKind.SUSPECTED_ROT, detail="", found_at=0
        )
        report = ProtectionReport(store="s", space="s", url="file:///s", items=1, findings=[rot], copies=copies)
        (line,) = [line for line in protection_lines(report, 0) if line.startswith("  suspected rot: ")]
        return line

    assert "`millstream store get disk1 s ID FILE`" in advice()
    assert "`millstream store get disk2 s ID FILE`" in advice("disk1")
    assert "restore each from a copy that has no finding above, or from a backup, or accept" in advice("disk1", "disk2")


def test_an_empty_source_is_not_offered_as_a_deletion() -> None:
    report = ProtectionReport(store="s", space="s", url="file:///s", vanished=2, vanished_items=["a", "b"])
    printed = "\n".join(protection_lines(report, 0))
    assert "check that its disk is mounted" in printed and "--vanished" not in printed


def test_p8_a_deletion_waits_for_one_run_although_every_run_meets_new_files_of_its_size(
    followed: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (followed.root / "z" / "a").unlink()
    (followed.root / "z").rmdir()
    waiting = []
    for name in ("e", "f"):
        listed_once_as(followed, monkeypatch, *(path.name for path in followed.root.iterdir()))
        followed.write(name, name.encode() * len(b"grain"))  # after the run listed the source
        followed.adopt()
        forget_followed(followed.target, SPACE)
        waiting.append(vanished(followed))
    assert waiting == [["z/a"], []]


def test_p8_a_source_that_lists_nothing_any_more_has_no_deletions_to_follow(followed: SourceFolder) -> None:
    (followed.root / "z" / "a").unlink()
    followed.adopt()
    for path in sorted(followed.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    forget_followed(followed.target, SPACE)
    assert vanished(followed) == ["z/a"]


def test_p8_an_item_of_a_space_that_is_not_there_is_not_absent(folder: SourceFolder) -> None:
    folder.write("a")

    def missing(*_: Any) -> Any:
        raise SpaceNotFoundError

    assert item_of(folder.store, SPACE, "b") is None
    with pytest.raises(SpaceNotFoundError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder.store, "info", missing)
        item_of(folder.store, SPACE, "a")
