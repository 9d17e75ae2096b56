"""Entry point of `penstock` and `python -m penstock`: starts before heavy imports, so that interrupts are handled."""

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
    except KeyboardInterrupt:  # during imports, or again during the first interrupt
        os.write(2, b"\npenstock: stopped\n")
        os._exit(_INTERRUPTED)
    finally:  # an interrupt at the end needs no message
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
