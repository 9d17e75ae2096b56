"""Runs commands of Modalities' own command line, one after another in one process: its imports take seconds.

Argument: JSON list of argument lists, or `{"folder": …, "commands": …}` to run them in a folder. Prints, for each, the
error's text, or null where it ended well.
"""

import json
import os
import sys

from modalities.__main__ import main


def run(arguments: list[str]) -> str | None:
    try:
        main.main(arguments, prog_name="modalities", standalone_mode=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return None


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if isinstance(given, dict):
        os.chdir(given["folder"])
        given = given["commands"]
    results = [run(arguments) for arguments in given]
    print(json.dumps(results))
