"""Is captionlab/ exactly what the notebooks export? Exports into a copy and compares."""
import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def exported(copy: Path) -> Path:
    """Export a copy of the notebooks into a copy of the package."""
    for name in ("nbs", "captionlab", "settings.ini"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    subprocess.run(["nbdev_export"], cwd=copy, check=True)
    return copy / "captionlab"


def differing(fresh: Path, committed: Path) -> list[str]:
    files = sorted(path.relative_to(fresh) for path in fresh.rglob("*.py"))
    return [str(f) for f in files
            if not (committed / f).exists() or not filecmp.cmp(fresh / f, committed / f, shallow=False)]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        stale = differing(exported(Path(folder)), ROOT / "captionlab")
    if stale:
        print(f"captionlab/ is not what the notebooks export: {', '.join(stale)}; run nbdev_export and commit")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
