"""Lets `python -m torchpfc` do what the command `torchpfc` does."""

import sys

from torchpfc.cli import main

if __name__ == "__main__":
    sys.exit(main())
