"""What must have come of the tasks, once all have ended."""

import asyncio
from pathlib import Path

from taskgate.demo.board import Row
from taskgate.demo.stage import Stage

_TASKS, _TYPES = 20, 5
_MOVES = 3
"""Distinct values of progress that a bar needs to have moved."""


async def judge(stage: Stage, *, here: bool = True) -> list[Path]:
    """Checks every task by its stream and by `GET /tasks/{id}`; the files that were made. `here`: on this machine."""
    rows = stage.board.rows
    types = {row.order.type for row in rows}
    wrong = [
        f"{row.order.name}: {row.status} in attempt {row.attempt}"
        for row in rows
        if (row.status, row.attempt) != (row.order.ends, row.order.attempts)
    ]
    stage.expect(
        f"{len(rows)} tasks of {len(types)} types end as they have to, in as many attempts as they have to",
        len(rows) >= _TASKS and len(types) >= _TYPES and not wrong,
        "; ".join(wrong),
    )
    await _streams(stage, rows)
    _dead_letter(stage, stage.board.role("dead"))
    _timeout(stage, stage.board.role("stubborn"))
    return await _files(stage, rows, here=here)


async def _streams(stage: Stage, rows: list[Row]) -> None:
    tasks = await asyncio.gather(*(stage.api.task(row.id) for row in rows))
    agree = [
        (task["status"], task["attempt"]) == (row.status, row.attempt) for row, task in zip(rows, tasks, strict=True)
    ]
    stage.expect("every event stream came to its end, and says what the status says", all(agree))
    moving = [row for row in rows if row.order.type in ("demo.census", "demo.wait")]
    still = [row.order.name for row in moving if len(row.steps) < _MOVES or row.fraction != 1.0]
    stage.expect("progress arrived live, up to its end", not still, ", ".join(still))


def _dead_letter(stage: Stage, row: Row) -> None:
    error = row.task.get("error") or {}
    traceback = str(error.get("traceback", ""))
    stage.expect(
        "what raises becomes a dead letter with its traceback",
        row.status == "failed" and error.get("kind") == "exception" and "_bill" in traceback,
        traceback.strip().rpartition("\n")[2],
    )


def _timeout(stage: Stage, row: Row) -> None:
    error = row.task.get("error") or {}
    stage.expect(
        "what ignores SIGTERM and every exception times out and is gone",
        row.status == "failed" and error.get("kind") == "timeout",
        f"{error.get('kind')} after {row.took_s:.1f} s",
    )


async def _files(stage: Stage, rows: list[Row], *, here: bool) -> list[Path]:
    made: list[Path] = []
    for row in rows:
        if row.order.role in ("files", "report") and row.status == "succeeded":
            result = await stage.api.result(row.id)
            made += [Path(one["file"]) for one in (result if isinstance(result, list) else [result])]
    report = [row for row in rows if row.order.role == "report"]
    pages = max((int(row.total or 0) for row in report if row.fraction == 1.0), default=0)
    missing = [file.name for file in made if here and (not file.is_file() or file.stat().st_size == 0)]
    stage.expect(
        "the chart, a report of several pages and the thumbnails are there",
        pages > 1 and {".svg", ".pdf", ".png"} <= {file.suffix for file in made} and not missing,
        ", ".join(missing) or f"{len(made)} files, {pages} pages",
    )
    return made if here else []
