"""The models that run in the site's pages, in headless Chromium.

The audit of accessibility needs axe-core: CAPTIONLAB_AXE names its file `axe.min.js`.
"""

import hashlib
import os
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from conftest import ROOT
from PIL import Image

import captionlab
from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import scenes
from captionlab.deploy import OnnxCaptioner
from captionlab.metrics import score
from captionlab.scenes import describe_scene, generate_scene
from captionlab.scenes.verification import verify_caption

pytestmark = pytest.mark.slow
for package in ("playwright.sync_api", "onnxruntime", "onnxscript", "yaml"):
    pytest.importorskip(package)
if not shutil.which("npm"):
    pytest.skip("needs npm", allow_module_level=True)

sys.path.insert(0, str(ROOT / "docs"))
import live_parts  # noqa: E402

PAGE = """<!doctype html><html lang="en" data-theme="{theme}"><head><title>live</title>
<link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width">
<style>html {{ --pst-color-text-base: #323232; --pst-color-background: #fff }}
html[data-theme=dark] {{ --pst-color-text-base: #ced6dd; --pst-color-background: #121212 }}
body {{ margin: 0; color: var(--pst-color-text-base); background: var(--pst-color-background);
font: 16px sans-serif }}</style>
<link rel="stylesheet" href="_static/captionlab.css">
<link rel="stylesheet" href="_static/live/live.css"><script src="_static/live/start.js"></script>
</head><body><main><h1>Live</h1>{parts}</main></body></html>"""
WIDGETS = list(live_parts.PLACES["titles"])


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs/_static", folder / "_static")
    try:
        live_parts.write(folder / "_static/live")
    except OSError as reason:
        pytest.skip(str(reason))
    for widget in WIDGETS:
        for theme in ("light", "dark"):
            html = PAGE.format(theme=theme, parts=live_parts.section(widget, "It stands still."))
            (folder / f"{widget}-{theme}.html").write_text(html)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def page(browser, address):
    """A page that may ask no other host, and must end without errors."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    faults = []
    page.on("console", lambda message: message.type in ("error", "warning")
            and faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: request.url.startswith((address, "data:", "blob:"))
            or faults.append(request.url))
    yield page
    page.close()
    assert not faults


def show(page, address, widget: str, theme: str = "light"):
    """Open the page of a widget, load its model, and return the widget."""
    page.goto(f"{address}/{widget}-{theme}.html")
    part = page.locator(f"section[data-live={widget}][data-ready]")
    part.wait_for()
    if part.locator(".live-load button").count():
        part.locator(".live-load button").click()
        part.locator(".live-load").wait_for(state="detached")
    return part


def in_page(page, address, script: str, argument):
    """Run an async function of (captioner module, world module, argument) in an empty page."""
    page.goto(f"{address}/masks-light.html")
    base = f"{address}/_static/live"
    return page.evaluate(
        f"""async (argument) => {{
            const live = await import("{base}/captioner.js");
            const pixels = await import("{base}/pixels.js");
            const scores = await import("{base}/scores.js");
            const world = await (await import("{base}/world.js")).loadWorld();
            return ({script})({{ live, pixels, scores, world }}, argument);
        }}""", argument)


def words(part) -> list[str]:
    """Return the words of the shown caption."""
    part.locator(".live-words button").first.wait_for()
    return [text.split("\n")[0] for text in part.locator(".live-words button").all_inner_texts()]


def status_of(part, text: str = "") -> str:
    """Return the text of the first status line that holds this text."""
    line = part.get_by_role("status").filter(has_text=text).first
    line.wait_for()
    return line.inner_text()


class TestParity:
    def test_a_hundred_scenes(self, page, address, folder):
        run = captionlab.load("scenes")
        seen = [generate_scene(seed) for seed in range(100)]
        pixels = [run.processor.pixels(scene) for scene in seen]
        objects = [[vars(one) for one in scene.objects] for scene in seen]
        found = in_page(page, address, """async ({ live, world }, scenes) => {
            const captioner = await live.load("scenes");
            const results = [];
            for (const objects of scenes) {
                const bytes = world.render(objects, captioner.spec.preprocess.size);
                const memory = await captioner.encode(bytes);
                const beam = await captioner.beam(memory, 3);
                results.push([[...bytes], captioner.text((await captioner.write(memory)).ids),
                    captioner.text(beam.ids)]);
            }
            return results;
        }""", objects)
        for (drawn, *_), expected in zip(found, pixels, strict=True):
            np.testing.assert_array_equal(np.array(drawn), expected.flatten())
        expected = OnnxCaptioner(folder / "_static/live/scenes").caption(pixels)
        assert [greedy for _, greedy, _ in found] == expected
        equal = sum(map(str.__eq__, expected, run.caption(pixels, beam=1)))
        beams = sum(found[i][2] == text for i, text in enumerate(run.caption(pixels, beam=3)))
        print(f"scenes: {equal} of 100 as PyTorch in 32 bits, {beams} with beam 3")
        assert min(equal, beams) >= 98

    def test_switched_off_heads_are_those_of_python(self, page, address):
        run = captionlab.load("scenes")
        blocks = run.model.decoder.blocks
        places = {("off_2", 2): blocks[1].self_attention, ("off_1", 0): blocks[0].cross_attention}
        seen = [generate_scene(seed) for seed in range(30)]
        found = in_page(page, address, """async ({ live, world }, [off, scenes]) => {
            const captioner = await live.load("scenes");
            captioner.off = off;
            const captions = [];
            for (const objects of scenes) {
                const bytes = world.render(objects, captioner.spec.preprocess.size);
                const { ids } = await captioner.beam(await captioner.encode(bytes), 3);
                captions.push(captioner.text(ids));
            }
            return captions;
        }""", [list(places), [[vars(one) for one in scene.objects] for scene in seen]])
        whole = run.caption(seen, beam=3)
        for (_, head), attention in places.items():
            width = attention.output.in_features // attention.heads
            part = torch.arange(attention.output.in_features) // width == head
            attention.output.register_forward_pre_hook(
                lambda _, inputs, part=part: (inputs[0].masked_fill(part, 0),))
        assert sum(map(str.__eq__, found, run.caption(seen, beam=3))) >= 29
        assert found != whole

    def test_captions_are_judged_as_in_python(self, page, address):
        run = captionlab.load("scenes")
        pairs = []
        for seed in range(60):
            scene = generate_scene(seed)
            texts = [*describe_scene(scene), *describe_scene(generate_scene(seed + 1)),
                     run.caption(scene), "a green star is a circle", "a shape and a red star"]
            pairs += [([vars(one) for one in scene.objects], text, scene) for text in texts]
        no_sentence = "not true: no sentence of the scenes' grammar"
        verdicts = {True: "true", False: "not true"}
        claims = [verify_caption(text, scene) for _, text, scene in pairs]
        expected = [verdicts[all(all(one.values()) for one in stated)] if stated else no_sentence
                    for stated in claims]
        found = in_page(page, address, """({ world }, pairs) => pairs.map(([objects, text]) =>
            world.verdict(text, objects).replace(/:(?! no sentence).*/, ""))""",
            [[objects, text] for objects, text, _ in pairs])
        assert found == expected
        assert min(map(expected.count, ("true", "not true", no_sentence))) >= 50

    @pytest.mark.java
    def test_the_verdict_says_which_of_two_equal_words_is_wrong(self, page, address):
        verdict = in_page(page, address, "({ world }, text) => "
                          "world.verdict(text, world.scenes[0].objects)",
                          "there is a large blue square and a brown square")
        assert verdict == "not true: the second “square”"

    @pytest.mark.java
    def test_metrics_are_those_of_python(self, page, address):
        items = scenes(train=0, val=0, test=150, novel=0)["test"]
        references = {item.name: list(item.captions) for item in items}
        first, second = items[0], items[1]
        texts = [first.captions[0], second.captions[0], "a red circle", "there is a circle and a"]
        found = in_page(page, address, """async ({ scores }, [references, texts]) => {
            const counts = await scores.loadCounts();
            return texts.map((text) => {
                const words = scores.tokens(text);
                const known = references.map(scores.tokens);
                return [...scores.bleu(words, known), scores.rougeL(words, known),
                    scores.cider(words, known, counts)];
            });
        }""", [references[first.name], texts])
        for text, values in zip(texts, found, strict=True):
            candidates = {item.name: item.captions[0] for item in items} | {first.name: text}
            per_image = score(candidates, references, meteor=False).per_image
            np.testing.assert_allclose(values, [column[0] for column in per_image.values()],
                                       atol=1e-4)

    @pytest.mark.data
    def test_fifty_photos(self, page, address, folder):
        run = captionlab.load("photos")
        files = [item.image for item in load_dataset("flickr8k")["test"][:50]]
        (folder / "given").mkdir()
        for file in files:
            shutil.copy(file, folder / "given")
        found = in_page(page, address, """async ({ live, pixels }, names) => {
            const captioner = await live.load("photos");
            const results = [];
            for (const name of names) {
                const blob = await (await fetch(`given/${name}`)).blob();
                const { image } = await pixels.decode(blob);
                const bytes = pixels.resize(image, captioner.spec.preprocess);
                const hash = await crypto.subtle.digest("SHA-256", bytes);
                const trace = await captioner.write(await captioner.encode(bytes));
                results.push([[...new Uint8Array(hash)], captioner.text(trace.ids),
                              captioner.isStrange]);
            }
            return results;
        }""", [file.name for file in files])
        equal = sum(bytes(digest) == hashlib.sha256(run.processor.pixels(file).tobytes()).digest()
                    for (digest, *_), file in zip(found, files, strict=True))
        captions = [caption for _, caption, _ in found]
        strange = run.novelty.similarity(run.processor(files).grid) < run.novelty.threshold
        assert [is_strange for *_, is_strange in found] == strange.tolist()
        assert strange.any()
        assert captions == OnnxCaptioner(folder / "_static/live/photos").caption(files)
        same = sum(map(str.__eq__, captions, run.caption(files, beam=1)))
        print(f"photos: pixels of {equal} of 50 equal, {same} captions as PyTorch in 32 bits")
        assert same >= 47


class TestWidgets:
    def test_a_photo_of_ones_own(self, page, address, tmp_path):
        file = tmp_path / "me.png"
        Image.fromarray(captionlab.scenes.render(generate_scene(3), 300)).save(file)
        part = show(page, address, "photo")
        part.locator("input[type=file]").set_input_files(file)
        part.get_by_label("your picture me.png").wait_for()
        expected = captionlab.load("photos").caption(file)
        assert "unlike those that the model learned from" in status_of(
            part, f"The model writes: {expected}")
        assert [*words(part)[:-1]] == expected.split()
        assert all("%" in text for text in part.locator(".live-words small").all_inner_texts())
        (tmp_path / "broken.png").write_text("no picture")
        part.locator("input[type=file]").set_input_files(tmp_path / "broken.png")
        status_of(part, "this file is no picture")

    def test_words_and_heads_of_a_photo_by_keyboard(self, page, address):
        part = show(page, address, "explorer")
        if not part.locator(".live-photos button").count():
            pytest.skip("no photos")
        first = words(part)
        before = status_of(part, "largest weight")
        part.locator(".live-words button").first.focus()
        page.keyboard.press("ArrowRight")
        assert f"“{first[1]}”" in status_of(part, "largest weight") != before
        mean = status_of(part, "largest weight")
        part.get_by_role("button", name="layer 1, head 2").press("Enter")
        assert part.get_by_label("Where it looked").input_value() == "1.2"
        assert status_of(part, "largest weight") != mean
        box = part.get_by_label("Your caption")
        box.fill("a zebra is here")
        box.press("Enter")
        status_of(part, "does not know zebra")
        box.fill("a dog is running")
        box.press("Enter")
        status_of(part, "bits, the model's own")
        assert words(part) == ["a", "dog", "is", "running", "(end)"]
        part.locator(".live-words button").nth(1).click()
        assert part.locator(".live-bars .chosen").inner_text().startswith("dog")
        part.get_by_role("button", name="Back to the model's").click()
        assert words(part) == first

    def test_a_scene_changes_by_keyboard_and_mouse(self, page, address):
        part = show(page, address, "scene")
        before = status_of(part, "The model writes")
        assert "true" in before
        star = part.get_by_role("button", name="medium-sized yellow star")
        star.focus()
        page.keyboard.press("ArrowLeft")
        chosen = part.locator("g[aria-pressed=true]")
        assert chosen.get_attribute("transform") == "translate(136 130)"
        part.get_by_label("Colour").select_option("green")
        part.get_by_role("button", name="medium-sized green star").wait_for()
        part.get_by_role("status").filter(has_text="green star").wait_for()
        part.locator("select").nth(2).select_option("large")
        part.get_by_role("button", name="large green star").wait_for()
        box = part.get_by_role("button", name="large green star").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 60, y, steps=4)
        page.mouse.up()
        assert chosen.get_attribute("transform") != "translate(136 130)"
        page.keyboard.press("Backspace")
        assert part.locator("g[role=button]").count() == 2
        part.get_by_role("button", name="Add a shape").click()
        part.get_by_role("button", name="small red circle").wait_for()

    def test_decoding(self, page, address):
        part = show(page, address, "decoding")
        greedy = words(part)
        part.get_by_label("Method").select_option("beam")
        part.locator(".live-tree text.strong").first.wait_for()
        assert part.locator(".live-tree text.strong").count() == len(words(part))
        part.get_by_label("Method").select_option("sample")
        part.locator(".live-samples li").first.wait_for()
        part.get_by_label("Top-k").fill("1")        # only the likeliest word is left: greedy
        part.locator(".live-samples li").nth(1).wait_for()
        assert words(part) == greedy
        assert part.locator(".live-bars li").count() == 1
        part.get_by_label("Top-k").fill("72")
        part.get_by_label("Temperature").fill("2")
        samples = part.locator(".live-samples li")
        samples.nth(3).wait_for()
        for count in (5, 6):
            part.get_by_role("button", name="Draw another").press("Enter")
            samples.nth(count - 1).wait_for()
        assert len(set(samples.all_inner_texts()[:3])) > 1

    def test_attention(self, page, address):
        part = show(page, address, "attention")
        assert "3.60 corners" in status_of(part)
        part.get_by_label("Divide").fill("8")
        assert "3.60" not in status_of(part)
        query = part.get_by_label("red").first
        query.focus()
        page.keyboard.press("ArrowRight")
        assert query.input_value() == "-0.75"

    def test_masks(self, page, address):
        part = show(page, address, "masks")
        part.get_by_label("a may not attend to red, weight 0.00").click()
        assert "comes later: a leak" in status_of(part)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Space")
        part.get_by_label("a may attend to red, weight 1.00").wait_for()
        part.get_by_role("button", name="Nothing").click()
        assert part.locator(".live-mask button[aria-pressed=true]").count() == 0
        assert set(part.locator(".live-mask button").all_inner_texts()) == {"0.00"}

    def test_positions(self, page, address):
        part = show(page, address, "positions")
        assert "wavelength is 35.3 positions" in status_of(part)
        part.get_by_role("slider", name="Pair").fill("0")
        assert "wavelength is 6.28 positions" in status_of(part)

    def test_metrics(self, page, address):
        part = show(page, address, "metrics")
        box = part.get_by_label("Your caption")
        assert "The caption is true." in status_of(part)
        before = part.locator("dd").all_inner_texts()
        box.fill(box.input_value().replace("three", "two"))
        assert "not true: “two”" in status_of(part)
        assert part.locator("dd").all_inner_texts() != before
        box.fill("")
        assert set(part.locator("dd").all_inner_texts()) == {"0.0"}

    def test_heads(self, page, address):
        part = show(page, address, "heads")
        status_of(part, "Now switch one off")
        for box in part.get_by_role("checkbox").all():
            box.focus()
            page.keyboard.press("Space")
        line = status_of(part, "Without 16 of 16")
        whole, changed = line.split("Without 16 of 16: ")
        assert changed not in whole         # without any head it sees nothing


class TestPages:
    @pytest.mark.parametrize("widget", WIDGETS)
    @pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1280)])
    def test_it_fits_and_is_accessible(self, page, address, widget, theme, width):
        page.set_viewport_size({"width": width, "height": 900})
        part = show(page, address, widget, theme)
        if widget in ("photo", "scene", "explorer", "decoding"):
            words(part)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if "CAPTIONLAB_AXE" in os.environ:
            page.add_script_tag(path=os.environ["CAPTIONLAB_AXE"])
            found = page.evaluate("async () => (await axe.run()).violations")
            assert [(one["id"], one["impact"], [node["html"][:90] for node in one["nodes"]])
                    for one in found if one["impact"] in ("serious", "critical")] == []

    def test_without_scripts_or_as_a_file_it_says_why(self, browser, address, folder):
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(f"{address}/scene-light.html")
        assert "It stands still. With JavaScript" in page.locator(".live").inner_text()
        context.close()
        page = browser.new_page()
        page.goto((folder / "scene-light.html").as_uri())
        assert "opened as a file" in page.locator(".live").inner_text()
        page.add_init_script("delete globalThis.WebAssembly")
        page.goto(f"{address}/scene-light.html")
        assert "has no WebAssembly" in page.locator(".live").inner_text()
        page.close()

    def test_every_place_is_there(self):
        for spot in live_parts.PLACES["lessons"]:
            text = (ROOT / "nbs" / f"{spot['page']}.ipynb").read_text()
            assert f'data-live=\\"{spot["widget"]}\\"' in live_parts.insert(text, spot)
            assert (ROOT / f"docs/live/part_{spot['widget']}.js").is_file()


def test_without_npm_the_build_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"npm cannot fetch onnxruntime-web@\d"):
        live_parts.fetch_runtime(tmp_path)
