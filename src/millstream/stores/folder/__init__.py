"""A folder that other programs wrote, as a source: names of any bytes, links, empty folders; and back into a folder."""

from millstream.stores.folder.path_names import decode_path, encode_path
from millstream.stores.folder.properties import KIND, MTIME, read_kind, with_recorded_kind
from millstream.stores.folder.restoring import find_restored, restore_item
from millstream.stores.folder.store import FolderStore, folder_url

__all__ = [
    "KIND",
    "MTIME",
    "FolderStore",
    "decode_path",
    "encode_path",
    "find_restored",
    "folder_url",
    "read_kind",
    "restore_item",
    "with_recorded_kind",
]
