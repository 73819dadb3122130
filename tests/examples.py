"""Models that live outside the package, in example notebooks, as modules for tests."""

import json
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "nbs/library/examples"


def example_module(name: str) -> ModuleType:
    """Return a module of the cells of an example notebook that come before it registers its model.

    The module is importable under its name, as a file of the reader's project would be.
    """
    if name in sys.modules:
        return sys.modules[name]
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    register_cell = next(i for i, source in enumerate(sources) if source.startswith("register("))
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile("\n".join(sources[:register_cell]), f"{name}.ipynb", "exec"), vars(module))
    return module
