"""Runs commands of Modalities' own command line, one after another in one process: its imports take seconds.

Argument: JSON list of argument lists. Prints, for each, the error's text, or null where it ended well.
"""

import json
import sys

from modalities.__main__ import main


def run(arguments: list[str]) -> str | None:
    try:
        main.main(arguments, prog_name="modalities", standalone_mode=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return None


if __name__ == "__main__":
    results = [run(arguments) for arguments in json.loads(sys.argv[1])]
    print(json.dumps(results))
