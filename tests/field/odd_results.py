"""Handlers whose results, errors and progress are odd; `back` returns what it got."""

from typing import Any

from taskgate import Attempt, handler


@handler("odd", timeout_s=30)
def odd(payload: dict[str, str]) -> Any:
    """Something that JSON has no word for, or no end."""
    match payload["kind"]:
        case "nan":
            return [1.0, float("nan")]
        case "deep":
            nested: list[Any] = []
            for _ in range(100_000):
                nested = [nested]
            return nested
    return "fine"


@handler("back", timeout_s=30)
def back(payload: Any) -> Any:
    return payload


@handler("says", timeout_s=30, max_attempts=1)
def says(payload: dict[str, str], attempt: Attempt) -> str:
    """Puts a text wherever a handler can put one."""
    text = payload["text"]
    attempt.progress(1, 2, unit=text[:20], stage=text, message=text)
    attempt.emit("own", {"text": text})
    attempt.log.info(text, text=text)
    print(text)
    if payload["end"] == "error":
        raise ValueError(text)
    return text
