"""Put the diagrams into the lessons as attachments, for readers who have the notebook alone.

    python nbs/images/attach.py       after draw.py; needs Chromium

Attachments are PNGs: JupyterLab shows no SVG there. The site shows the SVGs.
"""

import base64
import hashlib
import io
import json
import re
import shutil
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).resolve().parent
DIAGRAM = re.compile(r"\]\(attachment:([\w-]+)\.png\)")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def render(browser: Browser, svg: str) -> bytes:
    """Draw an SVG as a PNG, which names the SVG by its checksum.

    One and a half times its size: Markdown cannot say how wide a picture is shown.
    """
    page = browser.new_page(device_scale_factor=1.5)
    page.set_content(svg)
    picture = Image.open(io.BytesIO(page.locator("svg").screenshot(omit_background=True)))
    page.close()
    source = PngInfo()
    source.add_text("svg", hashlib.sha256(svg.encode()).hexdigest())
    png = io.BytesIO()
    picture.quantize(32).save(png, "PNG", optimize=True, pnginfo=source)
    return png.getvalue()


def main() -> None:
    with sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        for path in sorted(IMAGES.parent.glob("[0-9]*.ipynb")):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if found := DIAGRAM.search("".join(cell["source"])):
                    svg = (IMAGES / f"{found[1]}.svg").read_text(encoding="utf-8")
                    png = base64.b64encode(render(browser, svg)).decode()
                    cell["attachments"] = {f"{found[1]}.png": {"image/png": png}}
            text = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
