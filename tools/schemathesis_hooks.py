"""What Schemathesis (tools/schemathesis.sh) is not to try: answers that wait for longer than it does."""

import re
from typing import Any

import schemathesis

LONGEST_S = 2


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and not isinstance(wait, bool) and wait > LONGEST_S:
        case.query["wait"] = LONGEST_S
    prefer = (case.headers or {}).get("Prefer")
    if isinstance(prefer, str) and "wait" in prefer.lower():
        case.headers["Prefer"] = re.sub(r"\d+", str(LONGEST_S), prefer, flags=re.ASCII)
