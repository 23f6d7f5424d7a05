"""`stepscope tune cache`: list, export, import and forget what tuning found before."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from stepscope.cli.printing import print_document, put
from stepscope.cli.tune.options import CACHE_VARIABLE, cache_path
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.experiments.tune.cache import TuningCache


def cache_parser() -> argparse.ArgumentParser:
    """The options of `stepscope tune cache`."""
    parser = argparse.ArgumentParser(
        prog="stepscope tune cache", description="What tuning found before, and for what."
    )
    parser.add_argument(
        "--cache", metavar="PATH", help=f"the cache: a file, or a URL (default: ${CACHE_VARIABLE})"
    )
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    listing = words.add_parser("list", help="what is in it")
    listing.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print it (default: text)"
    )
    export = words.add_parser(
        "export", help="write it to one file, or to a URL; a cache that is there is added to"
    )
    export.add_argument("path", metavar="PATH")
    merge = words.add_parser(
        "import",
        help="take another cache in: of two records the checked one is believed, then the newer",
    )
    merge.add_argument("path", metavar="PATH")
    forget = words.add_parser("forget", help="take records away")
    forget.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        help="those in whose `what`, shapes, device or versions this stands",
    )
    forget.add_argument("--all", action="store_true", help="all of them")
    return parser


def run_cache(words: Sequence[str]) -> int:
    from stepscope.experiments.tune.cache import TuningCache

    arguments = cache_parser().parse_args(words)
    path = cache_path(arguments.cache)
    if not path:
        raise UsageError(
            f"which cache? Give it: stepscope tune cache --cache tuned.jsonl {arguments.word}; or "
            f"set {CACHE_VARIABLE}"
        )
    cache = TuningCache(path)
    if arguments.word == "list":
        _list(cache, arguments.format)
    elif arguments.word == "export":
        exported = cache.export_to(arguments.path)
        put(
            f"{arguments.path}: {exported.added} settings added, {exported.replaced} replaced,"
            f" {exported.kept} as they were there already\n"
        )
    elif arguments.word == "import":
        cache.refuse_strange()
        imported = cache.import_from(arguments.path)
        put(
            f"{imported.added} settings added, {imported.replaced} replaced, "
            f"{imported.kept} kept as they were, {imported.refused} lines left\n"
        )
    else:
        _forget(cache, arguments.text, is_all=arguments.all)
    return 0


def _list(cache: TuningCache, style: str) -> None:
    from stepscope.core.contract.codec import filled
    from stepscope.core.contract.tuning_cache import CacheEntry
    from stepscope.report.tune.cache import cache_document, cache_json

    rows = [filled(CacheEntry, entry, **asdict(entry.key)) for entry in cache.entries()]
    unread = cache.num_unread()
    if style == "json":
        put(cache_json(rows, unread) + "\n")
    else:
        print_document(cache_document(rows, unread))


def _forget(cache: TuningCache, text: str | None, *, is_all: bool) -> None:
    if bool(text) == is_all:
        raise UsageError("say what to forget: a text that stands in it, or --all")
    entries = cache.entries()
    chosen = [
        entry.key
        for entry in entries
        if text is None
        or text
        in " ".join(
            [*entry.key.without_versions, *(f"{n} {v}" for n, v in entry.key.versions.items())]
        )
    ]
    put(f"{cache.forget(chosen)} of {len(entries)} settings forgotten\n")
