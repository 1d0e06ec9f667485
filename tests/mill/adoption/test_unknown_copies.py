"""Copies without a record, compared with what was adopted."""

from __future__ import annotations

import io

from adopted_folder import SPACE, SourceFolder

from millstream.mill.adoption.unknown_copies import examine_unknown
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.manifest import ManifestEvent
from millstream.stores.memory import MemoryStore
from millstream.testing.faulty_store import ArchivingStore


def test_a_copy_that_is_not_given_out_is_left_alone_although_our_records_know_the_item(folder: SourceFolder) -> None:
    copy = MemoryStore("copy")
    copy.create_space(SPACE)
    for name in "ab":
        folder.write(name)
        copy.put(SPACE, name, io.BytesIO(b"grain" if name == "a" else b"other"))
    folder.adopt()
    folder.adopt()
    folder.manifest.writer.record([ManifestEvent("copy", SPACE, "c", 1, "ab" * 32, 5)])  # the store is ours
    providers = ConfiguredStores({"copy": ArchivingStore(copy, lambda call: call.content_id == "a")}, folder.clock)
    found = examine_unknown(folder.target, providers, SPACE, "copy")
    (archived,) = found.differing
    assert (archived.content_id, archived.kind) == ("a", "not-read")
    assert "restore it from the archive" in archived.detail and "differs" not in archived.detail
    assert [one.content_id for one in found.outdated] == ["b"] and found.same == []
