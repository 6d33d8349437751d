"""Calls in threads: what is shown of them is how many there are."""

import threading
from concurrent.futures import Future
from typing import Any

from workers.calls import Calls


def test_of_two_that_end_at_once_the_last_word_is_that_there_is_none() -> None:
    shown: list[int] = []
    second_may_end, second_has_ended = threading.Event(), threading.Event()

    def show(count: int) -> None:
        if threading.current_thread().name == "first":
            second_may_end.set()
            second_has_ended.wait(0.2)  # it cannot, while this is being shown
        shown.append(count)

    calls = Calls(show)
    one: Future[Any] = Future()
    other: Future[Any] = Future()
    calls.began(one)
    calls.began(other)

    def end_the_other() -> None:
        assert second_may_end.wait(10)
        calls.ended(other)
        second_has_ended.set()

    threads = [threading.Thread(target=calls.ended, args=(one,), name="first"), threading.Thread(target=end_the_other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert shown[-1] == len(calls) == 0
