"""Transformer image captioning: a course and a library."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import course
    from .runs.catalog import list_runs, load
    from .runs.fitting import fit

__version__ = "0.1.0"
__all__ = ["course", "fit", "list_runs", "load"]

_MODULES = {"fit": "runs.fitting", "list_runs": "runs.catalog", "load": "runs.catalog"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: torch takes seconds."""
    if name == "course":
        return import_module(f"{__name__}.course")
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'captionlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
