"""Pictures that are no photos: scenes, drawings and pages of text, each from a seed."""

import random

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from captionlab.scenes import generate_scene, render

WORDS = [
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with",
    "his", "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but",
    "what", "all", "were", "when", "we", "there", "can", "an", "your", "which", "their", "said",
    "if", "do", "will", "each", "about", "how", "up", "out", "them", "then", "she", "many", "some",
    "so", "these", "would", "other", "into", "has", "more", "her", "two", "like", "him", "see",
]  # fmt: skip
PAPER = ("white", "#fffef5", "#f4ecd8", "#f2f2f2")
INK = ("black", "#202020", "#1a237e", "#4e342e")


def scene(seed: int) -> Image.Image:
    return Image.fromarray(render(generate_scene(seed), 320))


def page(seed: int) -> Image.Image:
    """A page of text, in one or two columns, in one of the fonts that matplotlib brings."""
    chance = random.Random(f"page {seed}")
    width, height = chance.choice([(480, 640), (640, 480), (500, 500), (600, 800)])
    picture = Image.new("RGB", (width, height), chance.choice(PAPER))
    draw = ImageDraw.Draw(picture)
    family = chance.choice(["DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono"])
    size = chance.randint(10, 28)
    font = ImageFont.truetype(font_manager.findfont(family), size)
    columns = chance.choice([1, 1, 2]) if size < 18 else 1
    column = (width - 40 * (columns + 1)) // columns
    ink = chance.choice(INK)
    for number in range(columns):
        left, top = 40 + number * (column + 40), 40
        while top < height - 40 - size:
            line = ""
            while draw.textlength(line, font) < column - 5 * size:
                line += chance.choice(WORDS) + " "
            if chance.random() < 0.1:
                line = line[: len(line) // 2]
            draw.text((left, top), line, ink, font)
            top += round(1.5 * size)
    return picture


def _curve(chance: random.Random, size: int) -> list[tuple[float, float]]:
    """Points of a smooth random line."""
    t = np.linspace(0, 1, 60)
    points = []
    for _ in range(2):
        wave = sum(chance.uniform(-1, 1) / k * np.sin(k * 6.3 * t + chance.uniform(0, 6.3))
                   for k in range(1, 4))  # fmt: skip
        points.append(size / 2 + size / 4 * wave)
    return list(zip(*points, strict=True))


def _figure(draw: ImageDraw.ImageDraw, chance: random.Random, **pen) -> None:
    """A stick figure, a house or a tree, at a random place."""
    x, y, s = chance.uniform(60, 320), chance.uniform(80, 300), chance.uniform(25, 70)
    kind = chance.choice(["person", "house", "tree"])
    if kind == "person":
        draw.ellipse((x - s / 3, y - s, x + s / 3, y - s / 3), outline=pen["fill"],
                     width=pen["width"])  # fmt: skip
        for line in (
            (x, y - s / 3, x, y + s / 2),
            (x - s / 2, y, x + s / 2, y),
            (x, y + s / 2, x - s / 2, y + s),
            (x, y + s / 2, x + s / 2, y + s),
        ):
            draw.line(line, **pen)
    elif kind == "house":
        draw.rectangle((x - s, y - s / 2, x + s, y + s), outline=pen["fill"], width=pen["width"])
        draw.line((x - s, y - s / 2, x, y - 1.3 * s, x + s, y - s / 2), **pen)
        draw.rectangle((x - s / 4, y + s / 4, x + s / 4, y + s), outline=pen["fill"],
                       width=pen["width"])  # fmt: skip
    else:
        draw.line((x, y, x, y + s), **pen)
        draw.ellipse((x - s / 2, y - s, x + s / 2, y), outline=pen["fill"], width=pen["width"])


def drawing(seed: int) -> Image.Image:
    """A line drawing: figures, houses, trees, curves and polygons, some of them filled."""
    chance = random.Random(f"drawing {seed}")
    picture = Image.new("RGB", (400, 400), chance.choice(PAPER))
    draw = ImageDraw.Draw(picture)
    pen = {"fill": chance.choice(INK), "width": chance.randint(1, 5)}
    for _ in range(chance.randint(1, 6)):
        _figure(draw, chance, **pen)
    for _ in range(chance.randint(0, 3)):
        draw.line(_curve(chance, 400), **pen)
    for _ in range(chance.randint(0, 3)):
        corners = [(chance.uniform(0, 400), chance.uniform(0, 400)) for _ in range(4)]
        colour = tuple(chance.randint(0, 255) for _ in range(3))
        draw.polygon(corners, fill=colour if chance.random() < 0.4 else None, outline=pen["fill"])
    return picture


KINDS = {"scenes": scene, "drawings": drawing, "pages": page}
