"""Write hashes.txt: the digests of all packages in constraints.txt with one file for all platforms.

Run `make hashes` after a change of versions, and review the difference.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """\
# Digests of all packages with one file for all platforms. pip compares them before installing anything.
# All other packages (constraints.txt) have a file per platform and Python version. Update this file with make hashes.
"""


def canonical(name: str) -> str:
    """A package's name as all spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """The lines of a file of versions, by package."""
    lines = [line for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {canonical(line.split("==")[0]): line for line in lines}


def main() -> None:
    """Downloads them all, and takes the digests of those for any platform."""
    wanted = pins(ROOT / "constraints.txt")
    with tempfile.TemporaryDirectory() as folder:
        others = [line for name, line in wanted.items() if name != "torch"]  # gigabytes, and never for any platform
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *others], check=True)
        found = {canonical(path.name.split("-")[0]): path for path in Path(folder).glob("*-none-any.whl")}
        lines = [
            f"{line} --hash=sha256:{hashlib.sha256(found[name].read_bytes()).hexdigest()}"
            for name, line in wanted.items()
            if name in found
        ]
    (ROOT / "hashes.txt").write_text(HEAD + "\n".join(lines) + "\n")
    print(f"{len(lines)} of {len(wanted)} packages have one file for all platforms")


if __name__ == "__main__":
    main()
