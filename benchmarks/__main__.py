"""Run every benchmark in this folder, or those named: python -m benchmarks [attention ...]"""

import sys
from importlib import import_module
from pathlib import Path

known = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))
wanted = sys.argv[1:] or known
if unknown := set(wanted) - set(known):
    sys.exit(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(known)}")
for name in wanted:
    import_module(f"benchmarks.{name}").main()
