"""Makes a run's measurements the recorded ones of a GPU:

    python -m labkit.keep_results runs/2026-11-30_12-00-00 a100

writes `labkit/results/a100.json` from what the lessons of that run measured, and
`a100-table-….json`, `a100-sweep-….json` and `a100-plans-….json` from its tables, sweeps and plans.
Nothing is written unless everything can be read.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit import results
from labkit.errors import BadArgument, LabError
from labkit.run_folder import MEASURED

_KINDS = ("table", "sweep", "plans")


def keep(run: Path, gpu: str, folder: Path | None = None) -> list[Path]:
    """Writes the results files of `gpu`, a short name as in "a100", into `folder` (default: the
    kit's), and returns them. Raises BadArgument for a name that does not fit or a run without
    measurements, LabError for a measurement that is not as described."""
    folder = folder or results.FOLDER
    if not re.fullmatch(r"[a-z0-9]+", gpu):
        raise BadArgument(f"The GPU's short name is {gpu!r}; give small letters and digits, as in "
                          "a100.")
    lines = run / MEASURED
    if not lines.is_file():
        raise BadArgument(f"{run} has no measurements; give the folder of a run on a GPU, as in "
                          "`labkit run --device gpu`.")
    found = {folder / f"{gpu}.json": results.assemble(lines.read_text().splitlines())}
    for kind in _KINDS:
        for path in sorted(run.glob(f"{kind}-*.json")):
            try:
                found[folder / f"{gpu}-{path.name}"] = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise LabError(f"{path} cannot be read ({error}); run its lesson again.") from error
    with TemporaryDirectory() as trial:  # what cannot be read must not replace what can
        first = Path(trial) / f"{gpu}.json"
        first.write_text(json.dumps(found[folder / first.name]))
        results.load(first)
    for path, content in found.items():
        path.write_text(json.dumps(content, indent=1) + "\n")
    return list(found)


def main(arguments: list[str]) -> int:
    """Keeps the run that the arguments name; 2 for bad input."""
    if len(arguments) != 2:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    try:
        for path in keep(Path(arguments[0]), arguments[1]):
            print(f"{path} written")
    except LabError as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
