"""The verdict: a task that ended in another way than it had to is never passed over."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from taskgate.demo.api import Api
from taskgate.demo.board import Board, Row
from taskgate.demo.judge import judge
from taskgate.demo.orders import first_wave, second_wave
from taskgate.demo.screen import Screen
from taskgate.demo.stage import Stage

DEAD = {"kind": "exception", "message": "no", "traceback": "in _bill\nOrderError: no"}


class Records:
    """What the service would answer."""

    def __init__(self, board: Board, folder: Path) -> None:
        self.board = board
        self.folder = folder

    async def task(self, task_id: str) -> dict[str, Any]:
        (row,) = (row for row in self.board.rows if row.id == task_id)
        return row.task

    async def result(self, task_id: str) -> Any:
        names = {"chart": "a.svg", "report": "a.pdf"}
        (row,) = (row for row in self.board.rows if row.id == task_id)
        return {"file": str(self.folder / names.get(row.order.name, "a.png"))}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Twenty tasks that have ended as they should."""
    board = Board()
    for suffix in ("svg", "pdf", "png"):
        (tmp_path / f"a.{suffix}").write_text("made")
    for number, order in enumerate([*first_wave(short=True), *second_wave({})]):
        row = board.add(order, str(number))
        for current in range(1, 5):
            row.apply("progress", {"current": current, "total": 4})
        row.apply("end", {"status": order.ends, "attempt": order.attempts})
    board.role("dead").task["error"] = DEAD
    board.role("stubborn").task["error"] = {"kind": "timeout"}
    return board


async def _broken(board: Board, folder: Path) -> list[str]:
    """Texts of what did not hold."""
    async with asyncio.TaskGroup() as group:
        api = cast("Api", Records(board, folder))
        stage = Stage(api, board=board, screen=Screen(board, plain=True), group=group)
        await judge(stage)
    return [one.text for one in stage.expectations.seen if not one.held]


async def test_all_is_well_when_all_ended_well(board: Board, tmp_path: Path) -> None:
    assert await _broken(board, tmp_path) == []


def _late(row: Row) -> None:
    row.attempt = row.task["attempt"] = 3


def _other_status(row: Row) -> None:
    row.status = row.task["status"] = "expired"


def _disagreeing(row: Row) -> None:
    row.task = {**row.task, "status": "running"}


def _still(row: Row) -> None:
    row.steps.clear()


def _halfway(row: Row) -> None:
    row.current = 2


@pytest.mark.parametrize(
    ("role", "harm", "text"),
    [
        ("twice", _late, "end as they have to"),
        ("twice", _other_status, "end as they have to"),
        ("victim", _disagreeing, "says what the status says"),
        ("victim", _still, "progress arrived live"),
        ("victim", _halfway, "progress arrived live"),
        ("dead", lambda row: row.task.update(error={**DEAD, "traceback": ""}), "with its traceback"),
        ("dead", lambda row: row.task.update(error={**DEAD, "kind": "crash"}), "with its traceback"),
        ("stubborn", lambda row: row.task.update(error={"kind": "crash"}), "times out"),
        ("report", _halfway, "report of several pages"),
    ],
)
async def test_whatever_is_wrong_is_named(board: Board, tmp_path: Path, role: str, harm: Any, text: str) -> None:
    harm(board.role(role))
    assert [text in broken for broken in await _broken(board, tmp_path)] == [True]


async def test_a_missing_task_is_noticed(board: Board, tmp_path: Path) -> None:
    board.rows = [row for row in board.rows if row.order.role != "twice"]
    assert len(await _broken(board, tmp_path)) == 1


@pytest.mark.parametrize("name", ["a.svg", "a.pdf", "a.png"])
async def test_a_file_that_is_not_there_is_noticed(board: Board, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    assert len(await _broken(board, tmp_path)) == 1
