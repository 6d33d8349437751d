"""`demo.report`: a PDF report of a census, page by page."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from taskgate import Attempt, handler
from workers.handlers import chart, output
from workers.handlers.census import Census, merged

if TYPE_CHECKING:
    from reportlab.pdfgen.canvas import Canvas

_LEFT, _TOP, _RIGHT, _LINE, _ROWS = 60, 770, 535, 15, 42


class ReportRequest(BaseModel, extra="forbid"):
    folder: output.Folder
    census: Annotated[list[Census], Field(min_length=1, max_length=100, description="results of `demo.census`")]
    title: str = Field(default="The standard library, counted", max_length=100)


class Report(BaseModel):
    file: str
    pages: int
    size_bytes: int


class Table(BaseModel):
    """One page of a table; the first column is text, the others are numbers or text to the right."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@handler("demo.report", timeout_s=120)
def report(payload: ReportRequest, attempt: Attempt) -> Report:
    """Draws the cover with a chart, the longest functions, the commonest names and every package."""
    try:
        from reportlab.pdfgen.canvas import Canvas  # optional, and too heavy for every child
    except ImportError:
        raise output.missing("reportlab") from None
    census = merged(payload.census, top=_ROWS)
    file, tables = output.folder(payload.folder) / "report.pdf", list(_tables(census))
    canvas, pages = Canvas(str(file), pagesize=(595, 842)), len(tables) + 1
    canvas.setTitle(payload.title)
    _cover(canvas, payload.title, census)
    _end_page(canvas, 1, pages, attempt, stage="cover")
    for number, table in enumerate(tables, 2):
        _page(canvas, table)
        _end_page(canvas, number, pages, attempt, stage=table.title)
    canvas.save()
    return Report(file=str(file), pages=pages, size_bytes=file.stat().st_size)


def _tables(census: Census) -> Iterator[Table]:
    functions = [[f"{one.name}  ({one.file}:{one.line})", f"{one.lines:,}"] for one in census.longest]
    yield from _paged("Longest functions", ["function", "lines"], functions)
    yield from _paged("Commonest names", ["name", "seen"], [[name, f"{n:,}"] for name, n in census.names.items()])
    packages = [
        [name, f"{one.files:,}", f"{one.functions:,}", f"{one.lines:,}"]
        for name, one in sorted(census.packages.items())
    ]
    yield from _paged("Packages", ["package", "files", "functions", "lines"], packages)


def _paged(title: str, columns: list[str], rows: Sequence[list[str]]) -> Iterator[Table]:
    for first in range(0, len(rows), _ROWS):
        yield Table(title=title, columns=columns, rows=list(rows[first : first + _ROWS]))


def _cover(canvas: "Canvas", title: str, census: Census) -> None:
    from reportlab.graphics import renderPDF

    canvas.setFont("Helvetica-Bold", 24)
    canvas.drawString(_LEFT, _TOP - 20, title)
    canvas.setFont("Helvetica", 11)
    canvas.drawString(_LEFT, _TOP - 42, f"Python {census.python}, counted on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    facts = {"files": census.files, "lines": census.lines, "comments": census.comments}
    facts |= {"functions": census.functions, "classes": census.classes}
    for column, (name, number) in enumerate(facts.items()):
        canvas.setFont("Helvetica-Bold", 16)
        canvas.drawString(_LEFT + column * 97, _TOP - 95, f"{number:,}")
        canvas.setFont("Helvetica", 10)
        canvas.drawString(_LEFT + column * 97, _TOP - 110, name)
    drawing = chart.bars(census, packages=20)
    renderPDF.draw(drawing, canvas, _LEFT, _TOP - 150 - drawing.height)


def _page(canvas: "Canvas", table: Table) -> None:
    canvas.setFont("Helvetica-Bold", 14)
    canvas.drawString(_LEFT, _TOP, table.title)
    _row(canvas, _TOP - 30, table.columns, font="Helvetica-Bold")
    canvas.line(_LEFT, _TOP - 35, _RIGHT, _TOP - 35)
    for number, row in enumerate(table.rows, 1):
        _row(canvas, _TOP - 35 - number * _LINE, row, font="Helvetica")


def _row(canvas: "Canvas", y: int, cells: list[str], *, font: str) -> None:
    canvas.setFont(font, 9)
    canvas.drawString(_LEFT, y, cells[0])
    for back, cell in enumerate(reversed(cells[1:])):
        canvas.drawRightString(_RIGHT - back * 70, y, cell)


def _end_page(canvas: "Canvas", number: int, pages: int, attempt: Attempt, *, stage: str) -> None:
    canvas.setFont("Helvetica", 8)
    canvas.drawRightString(_RIGHT, 40, f"{number} of {pages}")
    canvas.showPage()
    attempt.progress(number, pages, unit="pages", stage=stage, message=f"page {number} of {pages}")
