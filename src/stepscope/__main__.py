"""`python -m stepscope` is `stepscope`."""

import sys

from stepscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
