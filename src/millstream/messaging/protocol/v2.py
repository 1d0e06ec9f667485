"""The messages and enumerations of ``v2.proto``, as classes; their types are in ``v2.pyi``. They have their own
descriptor pool, so that other clients of the same protocol may be loaded beside them.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper


def _load() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files("millstream.messaging.protocol").joinpath("v2.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(files.file[-1].name)
    names: dict[str, Any] = {"DESCRIPTOR": found}
    for name, message in found.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in found.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names


globals().update(_load())
