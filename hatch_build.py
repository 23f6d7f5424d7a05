"""Builds the compiled library into wheels and editable installs, where there is a compiler.

Without one, or when it fails, the package is pure Python and all the same in what it does.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "src/stepscope/core/libstepscope.so"


class CompiledHook(BuildHookInterface):  # type: ignore[type-arg]
    """Calls scripts/build-native, as a developer does."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """What hatchling calls before it packs."""
        library = Path(self.root) / LIBRARY
        library.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                ["sh", "scripts/build-native"],
                cwd=self.root,
                capture_output=True,
                text=True,
                check=False,
            )
            why = "" if done.returncode == 0 else done.stderr.strip() or "the compiler failed"
        except OSError as problem:
            why = str(problem)
        if why:
            line = why.splitlines()[0]
            sys.stderr.write(f"stepscope: the compiled library is left out: {line}\n")
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """The platform of the library: one architecture, also where Python itself is for two."""
    if sys.platform == "darwin":
        target = os.environ.get("MACOSX_DEPLOYMENT_TARGET", platform.mac_ver()[0]).split(".")
        major, minor = int(target[0]), int(target[1]) if len(target) > 1 else 0
        return f"macosx_{major}_{minor if major < 11 else 0}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
