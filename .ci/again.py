"""pytest, and the tests that failed once more, alone: one that passes then is flaky, listed by `.ci/run`, and a defect.

`again.py LIST ARGUMENTS...`: names of flaky tests are added to the file LIST. Many failures are no accident, and
nothing is repeated.
"""

import json
import subprocess
import sys
from pathlib import Path

FEW = 4
FAILED = 1  # pytest's exit code for tests that failed; all others are about pytest itself


def main() -> int:
    """The exit code: 0 if every test passed, be it the second time."""
    flaky, *arguments = sys.argv[1:]
    run = [sys.executable, "-m", "pytest", "-q"]
    code = subprocess.call([*run, *arguments])
    failed = last_failed()
    if code != FAILED or not 0 < len(failed) <= FEW:
        return code
    print(f"\nonce more, alone: {', '.join(failed)}", flush=True)
    code = subprocess.call([*run, *failed])
    passed = [name for name in failed if code == 0 or name not in last_failed()]
    with open(flaky, "a", encoding="utf-8") as names:
        names.writelines(f"{name}\n" for name in passed)
    return code


def last_failed() -> list[str]:
    """The tests that failed when they last ran."""
    path = Path(".pytest_cache/v/cache/lastfailed")
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
