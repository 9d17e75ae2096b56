"""`penstock` and `python -m penstock`: begins before anything of weight is imported, so that an interrupt is heard."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run a command and exit with its status."""
    try:
        from penstock.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while imports ran, or again while the first was answered
        os.write(2, b"\npenstock: stopped\n")
        os._exit(_INTERRUPTED)
    finally:  # what only ends may be interrupted without a word
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
