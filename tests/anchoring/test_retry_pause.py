"""The pause before a server is asked again."""

from __future__ import annotations

from millstream.anchoring.retry_pause import RetryPause


def test_a_pause_doubles_up_to_the_longest_and_begins_anew_after_an_answer() -> None:
    pause, now, lengths = RetryPause(1.0, 5.0), 100.0, list[float]()
    assert pause.is_over(0.0), "nobody has failed yet"
    for _ in range(5):
        pause.note(now, failed=True)
        length = next(length for length in range(1, 10) if pause.is_over(now + length))
        lengths.append(length)
        now += length
    assert lengths == [1, 2, 4, 5, 5]
    pause.note(now, failed=False)
    assert pause.is_over(now)
    pause.note(now, failed=True)
    assert (pause.is_over(now + 0.9), pause.is_over(now + 1.0)) == (False, True)
