"""Compiles ``v2.proto``: ``make proto``. Needs grpcio-tools, which only developers have."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
HEADER = "# Generated from v2.proto by `make proto`; do not edit.\n"


def compile_protocol(target: Path) -> None:
    """Write ``v2.binpb`` and ``v2.pyi`` into the folder *target*."""
    from grpc_tools import protoc

    google = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        failed = protoc.main(
            [
                "protoc",
                f"--proto_path={HERE}",
                f"--proto_path={google}",
                "--include_imports",
                f"--descriptor_set_out={target / 'v2.binpb'}",
                f"--pyi_out={folder}",
                "v2.proto",
            ]
        )
        if failed:
            sys.exit(failed)
        stub = (Path(folder) / "v2_pb2.pyi").read_text("utf-8")
    (target / "v2.pyi").write_text(HEADER + stub, "utf-8")


if __name__ == "__main__":
    compile_protocol(HERE)
