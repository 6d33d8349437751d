"""`demo.thumbnails`: paints landscapes and makes thumbnails of them in several sizes."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from taskgate import Attempt, handler
from workers.handlers import output

if TYPE_CHECKING:
    from PIL.Image import Image

_PAINTED = (1200, 800)


class ThumbnailsRequest(BaseModel, extra="forbid"):
    folder: output.Folder
    images: int = Field(default=3, ge=1, le=100)
    sizes: list[Annotated[int, Field(ge=16, le=1024)]] = Field(default=[64, 128, 256], min_length=1, max_length=10)
    seed: int = Field(default=0, description="another seed paints other landscapes")


class Picture(BaseModel):
    file: str
    width: int
    height: int
    size_bytes: int


@handler("demo.thumbnails", timeout_s=300)
def thumbnails(payload: ThumbnailsRequest, attempt: Attempt) -> list[Picture]:
    """Saves `images` × `sizes` PNG files and says how large each became."""
    try:
        import PIL.Image  # noqa: F401 -- optional, and too heavy for every child
    except ImportError:
        raise output.missing("pillow") from None
    folder, total = output.folder(payload.folder), payload.images * len(payload.sizes)
    made: list[Picture] = []
    for number in range(payload.images):
        attempt.progress(len(made), total, unit="files", stage="painting", message=f"landscape {number + 1}")
        painted = _landscape(random.Random(f"{payload.seed}/{number}"))
        for size in payload.sizes:
            file = folder / f"landscape-{payload.seed}-{number + 1}-{size}.png"
            made.append(_thumbnail(painted, size, file))
            attempt.progress(len(made), total, unit="files", stage="scaling", message=file.name)
    return made


def _thumbnail(painted: "Image", size: int, file: Path) -> Picture:
    small = painted.copy()
    small.thumbnail((size, size))
    small.save(file, optimize=True)
    return Picture(file=str(file), width=small.width, height=small.height, size_bytes=file.stat().st_size)


def _landscape(chance: random.Random) -> "Image":
    """An evening sky with a sun, and four ranges of hills, darker towards the front."""
    from PIL import Image, ImageDraw, ImageFilter

    width, height = _PAINTED
    dusk = Image.linear_gradient("L").resize(_PAINTED)
    sky = Image.composite(
        Image.new("RGB", _PAINTED, _colour(chance, 190)), Image.new("RGB", _PAINTED, _colour(chance, 90)), dusk
    )
    draw = ImageDraw.Draw(sky)
    x, y, radius = chance.randint(200, 1000), chance.randint(150, 400), chance.randint(50, 90)
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(255, 236, 179))
    sky = sky.filter(ImageFilter.GaussianBlur(3))
    draw, hue = ImageDraw.Draw(sky), chance.choice([(70, 110, 90), (80, 80, 120), (120, 90, 70)])
    for layer in range(4):
        base = height * (0.55 + layer * 0.12)
        ridge = [(step, base + chance.uniform(-60, 40)) for step in range(0, width + 61, 60)]
        shade = 1 - layer * 0.22
        fill = tuple(round(part * shade) for part in hue)
        draw.polygon([(0, height), *ridge, (width, height)], fill=fill)
    return sky


def _colour(chance: random.Random, least: int) -> tuple[int, int, int]:
    return chance.randint(least, 255), chance.randint(least - 40, least + 20), chance.randint(least - 60, least + 40)
