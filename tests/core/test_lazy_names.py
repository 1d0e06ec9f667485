"""The public names of packages that load them on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = [f"millstream.{name}" for name in ("anchoring", "anchoring.registry", "messaging", "mill", "pipeline")]
HEAVY = "{'grpc', 'google.protobuf', 'pyspark', 'sqlalchemy', 'pyarrow'}"


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_can_be_loaded_and_has_a_docstring(name):
    package = importlib.import_module(name)
    assert package.__all__
    for public in package.__all__:
        value = getattr(package, public)
        assert value.__name__ == public if hasattr(value, "__name__") else public == "Task"
        assert value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    messaging = importlib.import_module("millstream.messaging")
    with pytest.raises(AttributeError, match=r"module 'millstream\.messaging' has no attribute 'Consumer'"):
        _ = messaging.Consumer


def test_importing_the_packages_loads_none_of_what_their_names_need():
    script = f"import sys, {', '.join(PACKAGES)}; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_session_of_spark_is_not_delayed_by_importing_pyspark():
    script = f"import sys, millstream.pipeline.session; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
