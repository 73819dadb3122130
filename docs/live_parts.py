"""The live parts of the site: models that run in the page, and where each is placed.

`docs/live/` holds the scripts and `places.yaml`. Models, onnxruntime-web and photos are made when
the site is built and kept in the user's cache folder by their content.
"""
import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections import Counter
from html import escape
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent / "live"
PACKAGE = "onnxruntime-web@1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
MODELS = ("scenes", "photos")
PHOTO_SIDE = 260
FIRST = [("square", "blue", "large", "plain", 60, 60), ("circle", "brown", "small", "plain", 60, 60),
         ("star", "yellow", "medium", "plain", 140, 130)]       # the scene to begin with
PLACES = yaml.safe_load((HERE / "places.yaml").read_text())


def cached(name: str, key: str, make) -> Path:
    """Return a folder of the cache; `make` fills it when it is new."""
    from captionlab.files import cache_home

    folder = cache_home() / "live" / f"{name}-{key}"
    if not folder.exists():
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder


def fetch_runtime(folder: Path) -> None:
    """Fetch onnxruntime-web from npm, check it, and keep the two files that pages load."""
    command = ["npm", "pack", PACKAGE, "--pack-destination", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OSError(f"npm cannot fetch {PACKAGE}") from error
    (archive,) = folder.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        raise OSError(f"the checksum of {PACKAGE} is not the expected one")
    with tarfile.open(archive) as package:
        for name in RUNTIME:
            (folder / name).write_bytes(package.extractfile(f"package/dist/{name}").read())
    archive.unlink()


def export(name: str) -> Path:
    """Return the folder of a packaged captioner, exported with weights of 16 bits."""
    import captionlab
    from captionlab.deploy import export_onnx
    from captionlab.files import fingerprint

    source = Path(captionlab.__file__).parent
    parts = [source / "deploy/onnx.py", *sorted((source / "checkpoints" / name).iterdir())]
    key = fingerprint(*(file.read_bytes() for file in (*parts, Path(__file__))))
    return cached(name, key, lambda folder: add_switches(export_onnx(
        captionlab.load(name, device="cpu"), folder, half=True, attention=True)))


def add_switches(folder: Path) -> None:
    """Give the step a state that switches heads off, 1 for off: `off_0`, (rows, heads, 1, 1), and so on.

    Zeros, with which every caption begins, change nothing. Blocks follow each other; in each the
    self-attention comes first, then the cross-attention.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(folder / "step.onnx")
    spec = json.loads((folder / "captioner.json").read_text())
    shape = ["rows", spec["encoder"]["outputs"][0]["shape"][1], 1, 1]
    graph, nodes, number = model.graph, [], 0
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "MatMul" and node.input[0].startswith("softmax"):
            off, mixed = f"off_{number}", node.output[0]
            node.output[0] = f"{mixed}_on"
            nodes += [helper.make_node("Mul", [f"{mixed}_on", off], [f"{mixed}_off"]),
                      helper.make_node("Sub", [f"{mixed}_on", f"{mixed}_off"], [mixed]),
                      helper.make_node("Identity", [off], [f"new_{off}"])]
            for names, name in ((graph.input, off), (graph.output, f"new_{off}")):
                names.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            spec["step"]["state"].append({"name": off, "shape": shape, "dtype": "float32"})
            number += 1
    del graph.node[:]
    graph.node.extend(nodes)
    spec["step"]["outputs"][-1:-1] = [f"new_off_{i}" for i in range(number)]
    onnx.save(model, folder / "step.onnx")
    (folder / "captioner.json").write_text(json.dumps(spec))


def describe_world() -> tuple[dict, dict]:
    """Return what the scripts know of scenes, tables, grammar and scenes to begin with, and counts.

    `counts` says in how many of the `corpus` scenes' references each group of one to four words
    occurs, which CIDEr weighs by.
    """
    from captionlab.data.datasets import scenes
    from captionlab.scenes import describe_scene, language, world

    first = world.Scene([world.Object(*one) for one in FIRST])
    items = scenes(train=0, val=0, test=150, novel=0)["test"]
    counts: Counter = Counter()
    for item in items:
        texts = [text.lower().replace(",", "").rstrip(".").split() for text in item.captions]
        counts.update({" ".join(words[i:i + n]) for words in texts for n in range(1, 5)
                       for i in range(len(words) - n + 1)})
    shown = [(first, describe_scene(first)), *((item.image, item.captions) for item in items[:7])]
    return {
        "world": world.WORLD, "colours": world.COLOURS, "shapes": world.SHAPES,
        "sizes": world.SIZES, "background": world.BACKGROUND, "near": world.NEAR,
        "stripe": world.STRIPE, "inverse": world.INVERSE,
        "forms": [[kind, word, [english for english, _ in forms]]
                  for (kind, word), forms in language.FORMS.items()],
        "words": {word: english for word, (english, _) in language.WORDS.items()},
        "nouns": [[shape, *nouns[:2]] for shape, nouns in language.NOUNS.items()],
        "numbers": language.NUMBERS[0],
        "scenes": [{"objects": [vars(one) for one in scene.objects], "captions": list(captions)}
                   for scene, captions in shown],
    }, {"corpus": len(items), "counts": counts}


def write_photos(folder: Path) -> list[dict]:
    """Write the photos to choose from that are there, and return their names and descriptions."""
    from PIL import Image

    from captionlab.files import data_home

    homes = (HERE.parent / "_static/photos", data_home() / "flickr8k/images")
    found = []
    for name, text in PLACES["photos"].items():
        file = next((home / name for home in homes if (home / name).is_file()), None)
        if file is not None:
            with Image.open(file) as photo:
                photo.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
                photo.convert("RGB").save(folder / name, quality=90)
            found.append({"file": name, "text": text})
    return found


def write(folder: Path) -> None:
    """Write everything that the pages load; raises an `OSError` if something cannot be had."""
    runtime = cached("runtime", hashlib.sha256(SHA512.encode()).hexdigest()[:12], fetch_runtime)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.yaml"))
    shutil.copytree(runtime, folder, dirs_exist_ok=True)
    for name in MODELS:
        shutil.copytree(export(name), folder / name)
    for name, content in zip(("world", "counts"), describe_world(), strict=True):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "pictures").mkdir()
    photos = write_photos(folder / "pictures")
    sizes = {str(file.relative_to(folder)): file.stat().st_size
             for file in folder.rglob("*") if file.is_file()}
    (folder / "manifest.json").write_text(json.dumps({"sizes": sizes, "photos": photos}))


def section(widget: str, still: str) -> str:
    """Return the HTML of a live part, which says what stands there without scripts."""
    title = PLACES["titles"][widget]
    return (f'\n\n<section class="live" data-live="{widget}" aria-label="{escape(title)}">'
            f'<p class="live-title">{title}</p><p class="live-still">{still} '
            "<span>With JavaScript you could try it here.</span></p></section>\n\n")


def place(app, docname: str, content: list[str]) -> None:
    """Put the live parts of a page into its source."""
    if docname == "index":
        for widget in PLACES["titles"]:
            html = section(widget, PLACES["front"]) if app.config.live else ""
            content[0] = content[0].replace(f"<!-- live: {widget} -->", html)
    for spot in PLACES["lessons"] if app.config.live else []:
        if docname == f"course/{spot['page']}":
            content[0] = insert(content[0], spot)


def insert(text: str, spot: dict) -> str:
    """Return a notebook's JSON with a live part after the cell that has the heading."""
    notebook = json.loads(text)
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and f"# {spot['after']}\n" in f"{source}\n":
            html = section(spot["widget"], spot["still"])
            part = {"cell_type": "markdown", "id": f"live-{number}", "metadata": {}, "source": html}
            notebook["cells"].insert(number + 1, part)
            return json.dumps(notebook)
    raise ValueError(f"docs/live/places.yaml: {spot['page']} has no heading {spot['after']!r}")


def prepare(app, config) -> None:
    """Make the files, or say in one line why the pages have no live parts."""
    try:
        write(Path(app.outdir) / "_static/live")
    except (OSError, ImportError) as reason:
        print(f"docs: the pages have no live parts: {reason}")
        return
    config.live = True
    app.add_css_file("live/live.css")
    app.add_js_file("live/start.js")


def setup(app) -> None:
    """Connect the live parts to a build of the site."""
    app.add_config_value("live", False, "env")
    app.connect("config-inited", prepare)
    app.connect("source-read", place)
