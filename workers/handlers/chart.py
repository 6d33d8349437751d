"""`demo.chart`: draws the largest packages of a census as an SVG file."""

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from taskgate import Attempt, handler
from workers.handlers import output
from workers.handlers.census import Census, merged

if TYPE_CHECKING:
    from reportlab.graphics.shapes import Drawing

WIDTH = 480
_ROW, _BAR_LEFT, _BAR_RIGHT = 20, 110, 410


class ChartRequest(BaseModel, extra="forbid"):
    folder: output.Folder
    census: Annotated[list[Census], Field(min_length=1, max_length=100, description="results of `demo.census`")]
    packages: int = Field(default=15, ge=1, le=100)


class Chart(BaseModel):
    file: str
    size_bytes: int


@handler("demo.chart", timeout_s=60)
def chart(payload: ChartRequest, attempt: Attempt) -> Chart:
    """Draws a bar for each of the packages with the most lines."""
    try:
        from reportlab.graphics import renderSVG  # optional, and too heavy for every child
    except ImportError:
        raise output.missing("reportlab") from None
    attempt.progress(1, 2, unit="steps", stage="drawing")
    drawing = bars(merged(payload.census), packages=payload.packages)
    file = output.folder(payload.folder) / "packages.svg"
    renderSVG.drawToFile(drawing, str(file))
    attempt.progress(2, 2, unit="steps", stage="saved", message=file.name)
    return Chart(file=str(file), size_bytes=file.stat().st_size)


def bars(census: Census, *, packages: int) -> "Drawing":
    """The packages with the most lines, longest bar on top; `reportlab` must be there."""
    from reportlab.graphics.shapes import Drawing, Rect, String
    from reportlab.lib.colors import HexColor

    largest = sorted(census.packages.items(), key=lambda item: -item[1].lines)[:packages]
    drawing = Drawing(WIDTH, _ROW * (len(largest) + 2))
    ink, bar = HexColor("#1f2933"), HexColor("#2f6f9f")
    title = f"Lines by package, Python {census.python}"
    drawing.add(String(0, _ROW * (len(largest) + 1), title, fontName="Helvetica-Bold", fontSize=12, fillColor=ink))
    longest = max((package.lines for _, package in largest), default=1)
    for row, (name, package) in enumerate(reversed(largest)):
        bottom, length = row * _ROW, (_BAR_RIGHT - _BAR_LEFT) * package.lines / max(longest, 1)
        drawing.add(String(_BAR_LEFT - 8, bottom + 5, name, textAnchor="end", fontSize=9, fillColor=ink))
        rect = Rect(_BAR_LEFT, bottom + 2, length, _ROW - 6)
        rect.fillColor, rect.strokeColor = bar, None
        drawing.add(rect)
        drawing.add(String(_BAR_LEFT + length + 6, bottom + 5, f"{package.lines:,}", fontSize=9, fillColor=ink))
    return drawing
