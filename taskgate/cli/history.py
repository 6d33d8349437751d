"""The history of a dead letter as lines: each attempt with when, where, how long, how much memory, and why it ended."""

from collections.abc import Iterator
from datetime import datetime

from taskgate.cli.words import size, span
from taskgate.client import Attempt, Letter


def lines(letter: Letter) -> Iterator[str]:
    error = letter.get("error") or {}
    yield f"{letter['id']}  {letter.get('type')}  queue {letter.get('queue')}"
    yield f"submitted {letter.get('created_at')}, failed {letter.get('finished_at')}"
    attempts = letter.get("attempts") or []
    if not attempts:
        yield f"no attempt: {error.get('kind')}: {error.get('message')}"
    if letter.get("attempts_lost"):
        yield f"… {letter['attempts_lost']} older attempts are no longer kept"
    redriven_at = None
    for attempt in attempts:
        if attempt.get("redriven_at") != redriven_at:
            redriven_at = attempt.get("redriven_at")
            yield ""
            yield f"── redriven {redriven_at}"
        yield ""
        yield from _attempt(attempt)
    if attempts and attempts[-1].get("finished_at") != letter.get("finished_at"):
        yield ""
        yield f"then no attempt: {error.get('kind')}: {error.get('message')}"


def _attempt(attempt: Attempt) -> Iterator[str]:
    error = attempt.get("error") or {}
    peak = attempt.get("rss_peak_bytes")
    facts = [str(attempt.get("started_at")), _took(attempt), f"on {attempt.get('worker')}"]
    if peak is not None:
        facts.append(f"peak memory {size(peak)}")
    yield f"attempt {attempt.get('attempt')} · {' · '.join(fact for fact in facts if fact)}"
    yield f"  {error.get('kind')}: {error.get('message')}"
    for text in (error.get("traceback"), error.get("stack")):
        for line in str(text or "").splitlines():
            yield f"    {line}"


def _took(attempt: Attempt) -> str:
    try:
        begin, end = (datetime.fromisoformat(str(attempt.get(name))) for name in ("started_at", "finished_at"))
    except ValueError:
        return ""
    seconds = (end - begin).total_seconds()
    return f"{seconds:.3f} s" if seconds < 10 else span(seconds)
