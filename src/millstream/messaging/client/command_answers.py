"""The answers of a client to a server's commands."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

from millstream.messaging.protocol import v2


def verification_answer(nonce: str, code: int) -> v2.TelemetryCommand:
    """The answer to the question *nonce* whether a message can be handled: the protocol's status *code*."""
    kind: Any = code
    answer = v2.TelemetryCommand(status=v2.Status(code=kind))
    answer.verify_message_result.nonce = nonce
    return answer


def stack_trace_answer(nonce: str) -> v2.TelemetryCommand:
    """The answer to the question *nonce* what all threads are doing."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(number, number)}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    ]
    answer = v2.TelemetryCommand(status=v2.Status(code=v2.OK))
    answer.thread_stack_trace.nonce, answer.thread_stack_trace.thread_stack_trace = nonce, "\n".join(stacks)
    return answer
