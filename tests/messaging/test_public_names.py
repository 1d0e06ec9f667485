"""The public names of the messaging package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream.messaging

_IMPORT = "import sys, millstream.messaging; print(sorted({'grpc', 'google.protobuf'} & set(sys.modules)))"


@pytest.mark.parametrize("name", millstream.messaging.__all__)
def test_every_public_name_can_be_loaded(name: str) -> None:
    found = getattr(millstream.messaging, name)
    assert found.__name__ == name
    assert found.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Consumer'"):
        _ = millstream.messaging.Consumer  # type: ignore[attr-defined]


def test_importing_the_package_does_not_need_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
