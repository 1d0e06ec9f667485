"""Programs that tests start as processes of their own, and whose functions they use as well."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_program(path: Path) -> ModuleType:
    """The program at *path* as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
