"""Transformer image captioning: a course and a library."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import course
    from .runs.catalog import list_runs, load

__version__ = "0.1.0"
__all__ = ["course", "list_runs", "load"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: torch takes seconds."""
    if name == "course":
        return import_module(f"{__name__}.course")
    if name in __all__:
        return getattr(import_module(f"{__name__}.runs.catalog"), name)
    raise AttributeError(f"module 'captionlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
