"""Add the results that lessons read to the wheel; a clone has them beside the package."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Captions are large: those of a few runs are read, of all others the scores are enough.
CAPTIONS = ("scenes/*", "flickr8k/human.*", "flickr8k/*-squeezenet-*", "flickr8k/*-small-xe.*",
            "flickr8k/*-small-scst.seed*", "multi30k/*-strong-xe.*",
            "multi30k/*-strong-distilled*", "multi30k/*-paper-xe.*")


class BuildWithResults(build_py):
    """Copy modules, then the results; an editable install reads those of its clone."""

    def run(self) -> None:
        super().run()
        results = Path("results")
        for file in [] if self.editable_mode else sorted(results.rglob("*.json")):
            name = file.relative_to(results).as_posix()
            if "captions" in file.name and not any(fnmatch(name, kept) for kept in CAPTIONS):
                continue
            target = Path(self.build_lib, "captionlab/results", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithResults})
