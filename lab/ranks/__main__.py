"""Times and records jobs of several ranks on one GPU.

    python -m lab.ranks --list
    python -m lab.ranks --drive --out DIR [--cases A,B] [--seconds N]
    torchrun --nproc_per_node=2 -m lab.ranks --out DIR --cases A,B

The driver gives each case its own torchrun and packs the traces into DIR/ranks.tar;
DIR/ranks_truth.json has the answers. Without a GPU everything is tiny and runs on gloo: a
rehearsal.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.ranks",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="the cases, and no more")
    parser.add_argument("--drive", action="store_true", help="one torchrun per case")
    parser.add_argument("--out", type=Path, default=Path("lab"))
    parser.add_argument("--cases", default="", help="names, separated by commas; all without it")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin no case that may not end within this"
    )
    parser.add_argument(
        "--limit", type=int, default=40, help="seconds after which a rank ends itself in a case"
    )
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    from lab.ranks.cases import CASES

    names = [name for name in args.cases.split(",") if name] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; --list names them")
    if args.list:
        for name in names:
            case = CASES[name]
            blamed = "/".join(case.causes) or f"({case.suspect})"
            log = logging.getLogger("lab.ranks")
            log.info(
                "%-24s %d%s %-24s %s",
                name,
                case.world,
                "*" if case.held_out else " ",
                blamed,
                case.fix,
            )
        return 0
    if args.drive:
        from lab.ranks.drive import drive

        return 1 if drive(names, args.out, args.seconds, args.limit) else 0
    from lab.ranks.worker import work

    work(names, args.out, args.limit)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
