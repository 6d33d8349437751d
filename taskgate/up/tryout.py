"""`tryout.py MODULE…`: whether these handler modules load; if not, why, with the traceback of a failed import."""

import importlib
import sys
import traceback
from pathlib import Path

from taskgate.handlers import HandlerError, load


def main() -> int:
    sys.path.insert(0, str(Path.cwd()))  # as in a child
    try:
        load(sys.argv[1:])
    except HandlerError as error:
        if error.__cause__:
            print(_import_of(error.__cause__), end="", file=sys.stderr)
        print(f"taskgate: {error}", file=sys.stderr)
        return 1
    return 0


def _import_of(error: BaseException) -> str:
    """The traceback from the first line of the imported module on; empty if it was not an import that failed."""
    trace = traceback.TracebackException.from_exception(error)
    start = next((index for index, frame in enumerate(trace.stack) if frame.filename == importlib.__file__), None)
    if start is None:
        return ""
    theirs = [frame for frame in trace.stack[start + 1 :] if not frame.filename.startswith("<frozen importlib")]
    trace.stack = traceback.StackSummary.from_list(theirs)
    return "".join(trace.format())


if __name__ == "__main__":
    sys.exit(main())
