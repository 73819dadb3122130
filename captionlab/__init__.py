__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`captionlab.load`, imported when it is first asked for: torch takes seconds."""
    if name == "load":
        from .runs.run import load

        return load
    raise AttributeError(f"module 'captionlab' has no attribute {name!r}")
