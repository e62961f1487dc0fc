"""Run the scripts in examples/gallery, which write their figures to a folder.

    python tools/gallery.py FOLDER [DATA]

Scripts that require a data file are skipped if the folder DATA does not contain it.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = sorted((Path(__file__).parents[1] / "examples" / "gallery").glob("[a-z]*.py"))


def data_file(script: Path) -> str | None:
    """Name of the data file that a script requires, or None."""
    found = re.search(r'else "([\w.]+)"$', script.read_text(), re.MULTILINE)
    return found[1] if found else None


def seconds_stated(script: Path) -> float:
    """Run time in seconds, as stated in the docstring of a script."""
    found = re.search(r"^Run time: (\d+) s\.", script.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{script.name}: the docstring states no run time; expected a line such as `Run time: 7 s.`")
    return float(found[1])


def main(folder: Path, data: Path | None) -> int:
    """Run all scripts and return the number of failures."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for script in SCRIPTS:
        name = data_file(script)
        if name is not None and (data is None or not (data / name).is_file()):
            print(f"{script.name}: skipped; requires {name}")
            continue
        arguments = [] if name is None or data is None else [str((data / name).resolve())]
        begin = time.monotonic()
        environment = {**os.environ, "MPLBACKEND": "Agg"}
        code = subprocess.run([sys.executable, str(script), *arguments], cwd=folder, env=environment, check=False)
        failed += code.returncode != 0
        print(f"{script.name}: {time.monotonic() - begin:.0f} s" + ("" if code.returncode == 0 else ", failed"))
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
