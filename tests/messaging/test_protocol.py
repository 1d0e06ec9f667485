"""The protocol: what is checked in is what the source compiles to, and it agrees with the official client's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.messaging.protocol import compile as compiler
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.descriptor_methods import methods

CHECK_OFFICIAL = """
import os, sys
first, second = sys.argv[1:]
names = {"ours": "millstream.messaging.protocol.v2", "theirs": "rocketmq.grpc_protocol"}
for name in (first, second):
    __import__(names[name])
from millstream.messaging.protocol import v2
from rocketmq.grpc_protocol import definition_pb2, service_pb2

def compare(ours, theirs):
    other = {field.number: field for field in theirs.fields}
    assert {field.number for field in ours.fields} == set(other), ours.name
    for field in ours.fields:
        that = other[field.number]
        assert (field.name, field.type, field.is_repeated, field.has_presence) == (
            that.name, that.type, that.is_repeated, that.has_presence), field.full_name

checked = 0
for file in (definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR):
    for name, theirs in file.message_types_by_name.items():
        compare(v2.DESCRIPTOR.message_types_by_name[name], theirs)
        checked += 1
    for name, theirs in file.enum_types_by_name.items():
        ours = v2.DESCRIPTOR.enum_types_by_name[name]
        assert {v.name: v.number for v in ours.values} == {v.name: v.number for v in theirs.values}
    for name, theirs in file.services_by_name.items():
        ours = v2.DESCRIPTOR.services_by_name[name]
        assert [(m.name, m.input_type.name, m.output_type.name) for m in ours.methods] == [
            (m.name, m.input_type.name, m.output_type.name) for m in theirs.methods]
sent = definition_pb2.Message(body=b"b")
sent.system_properties.born_timestamp.FromMilliseconds(12_345)
assert v2.Message.FromString(sent.SerializeToString()).system_properties.born_timestamp.ToMilliseconds() == 12_345
print(checked)
"""


def test_what_is_checked_in_is_what_the_source_compiles_to(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    compiler.compile_protocol(tmp_path)
    for name in ("v2.binpb", "v2.pyi"):
        assert (tmp_path / name).read_bytes() == (compiler.HERE / name).read_bytes()


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_both_protocols_load_in_one_process_and_agree(order: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("rocketmq")
    result = subprocess.run(
        [sys.executable, "-c", CHECK_OFFICIAL, *order],
        env={"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 50


def test_the_service_has_all_methods_of_the_reference() -> None:
    found = methods()
    assert len(found) == 17
    assert found["ReceiveMessage"].streams_responses
    assert not found["ReceiveMessage"].streams_requests
    assert found["Telemetry"].streams_requests
    assert found["SendMessage"].request is v2.SendMessageRequest
    assert found["SendMessage"].path == "/apache.rocketmq.v2.MessagingService/SendMessage"
