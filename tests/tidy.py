"""Keep what notebooks store in step with their cells: `tests/export.py` does it first.

Cells that are folded on the site are folded in JupyterLab, VS Code (`jupyter.source_hidden`) and
Colab (`cellView`). The choices of a prediction are stored below its call. The result that it asks
for is hidden, and so is the text about it. What a cell with data printed is kept in the package.
"""

import ast
import json
import re
from pathlib import Path

from captionlab.course.lessons import needs_data, stored_key
from captionlab.course.predictions import Prediction

NBS = Path(__file__).resolve().parent.parent / "nbs"
STORED = NBS.parent / "captionlab/course/stored.json"
FOLDED = re.compile(r"^#\| *(hide *$|default_exp|code-fold: *true)", re.M)
CALL = re.compile(r"^(captionlab\.course\.)?(predict|review)\(", re.M)
RESULTS = re.compile(r",\s*results=\d+(?=\)$)")
END = re.compile(r"^(#|> \*\*Predict\.)", re.M)  # of a text that answers
KERNEL = {"display_name": "python3", "language": "python", "name": "python3"}  # else one is asked for
OPEN = '<details class="cl-answer"><summary>What came out</summary>\n\n'
CLOSE = "\n\n</details>"


def text(cell: dict) -> str:
    """A cell's source."""
    return "".join(cell["source"])


def is_call(cell: dict, name: str) -> bool:
    """Whether a cell asks a prediction or questions on earlier lessons."""
    match = cell["cell_type"] == "code" and CALL.search(text(cell))
    return bool(match) and match[2] == name


def fold(cell: dict) -> None:
    """Set the metadata of a code cell by its directives."""
    metadata = {key: value for key, value in cell["metadata"].items()
                if key not in ("jupyter", "cellView")}
    if FOLDED.search(text(cell)) or is_call(cell, "predict") or is_call(cell, "review"):
        metadata |= {"cellView": "form", "jupyter": {"source_hidden": True}}
    cell["metadata"] = metadata


def show_choices(cell: dict) -> None:
    """Store below the call of a prediction what it shows without a kernel."""
    call = ast.parse(text(cell)).body[-1].value
    values = [ast.literal_eval(each) for each in call.args]
    values += [ast.literal_eval(each.value) for each in call.keywords if each.arg != "results"]
    asked = Prediction(*values)
    cell["outputs"] = [{
        "data": {"text/html": asked.as_html().splitlines(keepends=True),
                 "text/plain": [f"Prediction {asked.identifier}"]},
        "metadata": {}, "output_type": "display_data",
    }]


def split_answer(source: str) -> tuple[str, str]:
    """A text's answer, and the rest: what follows a heading or a prediction, or leads to a cell."""
    if end := END.search(source):
        return source[: end.start()].strip(), source[end.start():]
    paragraphs, _, last = source.strip().rpartition("\n\n")
    return (paragraphs, last) if last.endswith(":") else (source.strip(), "")


def hide_answer(cells: list[dict]) -> int:
    """Hide the outputs of the next cells that have any, and the text below them.

    Args:
        cells: those below a prediction. If text comes first, it is the answer.

    Returns:
        How many cells have hidden outputs.
    """
    results = 0
    for cell in cells:
        if cell["cell_type"] == "markdown":
            if text(cell).startswith(OPEN):     # the text itself says where its answer ends
                cell["metadata"]["answers"] = True
                return results
            answer, rest = split_answer(text(cell))
            if answer and (results or cell is cells[0]):
                whole = OPEN + answer + CLOSE + (f"\n\n{rest}" if rest else "")
                cell["source"] = whole.splitlines(keepends=True)
                cell["metadata"]["answers"] = True
                return results
            if END.match(rest):
                return results
        elif is_call(cell, "predict"):
            return results
        elif cell["outputs"]:
            cell["metadata"].setdefault("jupyter", {})["outputs_hidden"] = True
            results += 1
    return results


def count_results(call: dict, results: int) -> None:
    """Say in a prediction's call how many of the cells below it have hidden outputs."""
    source = RESULTS.sub("", text(call).rstrip())
    if results > 1:
        source = source.removesuffix(")") + f", results={results})"
    call["source"] = source.splitlines(keepends=True)


def printed(cell: dict) -> str:
    """What a cell printed, without its figures."""
    parts = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if not data.keys() & {"image/png", "image/jpeg", "text/html"}:
            parts.append("".join(output.get("text") or data.get("text/markdown")
                                 or data.get("text/plain", "")))
    return "\n".join(part.rstrip("\n") for part in parts)


def tidy(notebook: dict) -> None:
    """Bring a notebook in step."""
    cells = notebook["cells"]
    notebook["metadata"].setdefault("kernelspec", KERNEL)
    for cell in cells:
        if cell["cell_type"] == "code":
            fold(cell)
    for place, cell in enumerate(cells):
        if is_call(cell, "predict"):
            count_results(cell, hide_answer(cells[place + 1:]))
            show_choices(cell)
    for cell in cells:      # a fold whose prediction is gone opens
        if not cell["metadata"].pop("answers", False) and OPEN in (source := text(cell)):
            cell["source"] = source.replace(OPEN, "").replace(CLOSE, "").splitlines(keepends=True)


def main() -> None:
    """Bring all lessons and solutions in step, and write the stored texts."""
    stored = {}
    for path in sorted([*NBS.glob("[0-9]*.ipynb"), *NBS.glob("solutions/*.ipynb")]):
        old = path.read_text(encoding="utf-8")
        notebook = json.loads(old)
        tidy(notebook)
        new = json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        if new != old:
            path.write_text(new, encoding="utf-8")
        stored.setdefault(path.stem.split("_")[0], {}).update({
            stored_key(text(cell)): printed(cell) for cell in notebook["cells"]
            if cell["cell_type"] == "code" and needs_data(text(cell)) and printed(cell)})
    stored = {lesson: texts for lesson, texts in stored.items() if texts}
    STORED.write_text(json.dumps(stored, indent=1, ensure_ascii=False, sort_keys=True) + "\n",
                      encoding="utf-8")


if __name__ == "__main__":
    main()
