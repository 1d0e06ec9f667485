"""The base of all stores that pass calls on to another one."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest

from millstream.stores import FolderStore, LocalStore, MemoryStore, Store, ThrottledStore, needs_adoption
from millstream.stores.wrapper import WRITES, Answer, StoreCall, StoreWrapper

METHODS = sorted(name for name in vars(Store) if not name.startswith("_") and name != "url")


class Recorder(StoreWrapper):
    """Records what passes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[StoreCall] = []

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:
        self.calls.append(call)
        return super().perform(call, act)


class Answering:
    """A store that gives back the name and the arguments of each call."""

    url = "answering://store"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: (name, arguments, named)


@pytest.mark.parametrize("name", METHODS)
def test_a_wrapper_has_every_method_of_the_protocol_with_its_arguments(name: str) -> None:
    expected = inspect.signature(getattr(Store, name))
    assert name in vars(StoreWrapper)
    assert inspect.signature(getattr(StoreWrapper, name)) == expected


@pytest.mark.parametrize("name", METHODS)
def test_a_wrapper_passes_every_call_on_once_and_gives_the_answer_back(name: str) -> None:
    parameters = [one for one in inspect.signature(getattr(Store, name)).parameters.values() if one.name != "self"]
    positional = tuple(f"<{one.name}>" for one in parameters if one.kind != inspect.Parameter.KEYWORD_ONLY)
    named = {one.name: f"<{one.name}>" for one in parameters if one.kind == inspect.Parameter.KEYWORD_ONLY}
    recorder = Recorder(Answering())  # type: ignore[arg-type]
    answer = getattr(recorder, name)(*positional, **named)
    assert answer in (None, (name, positional, named))
    [call] = recorder.calls
    assert call.method == name
    assert call.space == ("<space>" if "space" in {one.name for one in parameters} else "")
    assert call.content_id == ("<content_id>" if "content_id" in {one.name for one in parameters} else "")


def test_every_change_is_known_as_one() -> None:
    assert set(METHODS) - WRITES == {"spaces", "has_space", "space_acls", "entries", "info", "open"}
    recorder = Recorder(MemoryStore())
    recorder.create_space("space")
    recorder.put("space", "item", io.BytesIO(b"grain"))
    assert [call.method in WRITES for call in recorder.calls] == [True, True]


def test_a_wrapped_source_is_still_one(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"grain")
    source = FolderStore(tmp_path, space="space")
    assert needs_adoption(ThrottledStore(StoreWrapper(source), 1e6))
    assert not needs_adoption(StoreWrapper(LocalStore(tmp_path / "own")))
