"""Transformer image captioning: a course and a library."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exercises.checks import check
    from .exercises.guidance import hint, rubric, solution
    from .exercises.predictions import predict
    from .exercises.records import progress
    from .exercises.reviews import review
    from .runs.catalog import list_runs, load

__version__ = "0.1.0"
__all__ = [
    "check", "hint", "list_runs", "load", "predict", "progress", "review", "rubric", "solution",
]

# The module that defines each public name; what is not here is in `exercises`.
_MODULES = {"list_runs": "runs.catalog", "load": "runs.catalog"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: torch takes seconds."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'exercises')}"), name)
    raise AttributeError(f"module 'captionlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
