"""`stepscope tune cache`: list, export, import and forget what tuning found before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.cli import options as declare
from stepscope.cli.printing import print_document, put
from stepscope.errors import UsageError
from stepscope.tune.cache import TuningCache, kept_setting
from stepscope.tune.cli.options import CACHE_VARIABLE, cache_path
from stepscope.tune.report.cache import cache_document, cache_json


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    style: str = declare.style(("text", "json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    path: str = declare.option("PATH", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    path: str = declare.option("PATH", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    text: str | None = declare.option(
        "TEXT", "those in whose `what`, shapes, device or versions this stands", nargs="?"
    )
    all: bool = declare.option("--all", "all of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    cache: str | None = declare.option(
        "--cache PATH", f"the cache: a file, or a URL (default: ${CACHE_VARIABLE})"
    )
    word: List | Export | Import | Forget = declare.actions(
        {
            "list": (List, "what is in it"),
            "export": (
                Export,
                "write it to one file, or to a URL; a cache that is there is added to",
            ),
            "import": (
                Import,
                "take another cache in: of two records the checked one is believed, then the newer",
            ),
            "forget": (Forget, "take records away"),
        },
        required=True,
        metavar="WORD",
    )


def run_cache(words: Sequence[str]) -> int:
    about = "What tuning found before, and for what."
    options = declare.read_options(CacheOptions, words, "stepscope tune cache", about)
    path, asked = cache_path(options.cache), options.word
    if not path:
        raise UsageError(
            "which cache? Give it: stepscope tune cache --cache tuned.jsonl "
            f"{type(asked).__name__.lower()}; or set {CACHE_VARIABLE}"
        )
    cache = TuningCache(path)
    if isinstance(asked, List):
        _list(cache, asked.style)
    elif isinstance(asked, Export):
        exported = cache.export_to(asked.path)
        put(
            f"{asked.path}: {exported.added} settings added, {exported.replaced} replaced,"
            f" {exported.kept} as they were there already\n"
        )
    elif isinstance(asked, Import):
        cache.refuse_strange()
        imported = cache.import_from(asked.path)
        put(
            f"{imported.added} settings added, {imported.replaced} replaced, "
            f"{imported.kept} kept as they were, {imported.refused} lines left\n"
        )
    else:
        _forget(cache, asked.text, is_all=asked.all)
    return 0


def _list(cache: TuningCache, style: str) -> None:
    rows = list(map(kept_setting, cache.entries()))
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
