"""Runs of stepscope whose job is a script with the torch of light_torch.py, forked and not started;
and such a script by itself.

To start a Python and to import torch is most of what a small job takes. So one process, which has
no part in any of them, has torch, and forks for both `stepscope` and its job: each has its own
number, parent, signals, output, environment and end, and `import torch` finds its modules loaded,
after whatever waits for it. Half of the rest is `stepscope` itself, imported anew by each run: what
the first one imported, the next find loaded, and each where it would import it. What is not as
after a start: modules of the standard library that torch needs are there from the beginning, and
the script's frames stand on others. Where that or the start matters, a job is started.

    python forked_jobs.py FD    serves the socket's other end, a run at a time
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Modules have names that a job's own may have; this folder has tests.
    del sys.path[0]

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

HERE = Path(__file__).absolute()
MAX_BYTES = 1 << 20
"""Of a request: words and an environment."""
Modules = dict[str, ModuleType]


class Forked:
    """The process that has torch, as a test has it."""

    num_runs = 0

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE), str(theirs.fileno())],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        timeout_s: float,
        *,
        whole_end: bool,
    ) -> subprocess.CompletedProcess[bytes]:
        """`stepscope WORDS` in the folder, to its end; or the script alone, where the words are
        what starts it."""
        Forked.num_runs += 1
        asked = json.dumps([list(words), dict(environment), str(folder), whole_end])
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._socket, [asked.encode()], [out.fileno(), err.fileno()])
            process_id = self._number()
            self._socket.settimeout(timeout_s)
            try:
                code = self._number()
            except TimeoutError:
                os.kill(process_id, signal.SIGKILL)
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(words), code, out.read(), err.read())

    def _number(self) -> int:
        return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(asking: socket.socket) -> None:
    torch = _torch()
    # What every run would import first of all.
    import stepscope.cli.main
    import stepscope.cli.run  # noqa: F401

    imports = Imports()
    gc.freeze()
    while True:
        request, files, _, _ = socket.recv_fds(asking, MAX_BYTES, 2)
        if not request:
            return
        with tempfile.TemporaryFile() as seen:
            process_id = os.fork()
            if process_id == 0:
                asking.close()
                for number, file in enumerate(files, 1):
                    os.dup2(file, number)
                _become_stepscope(torch, imports, seen, *json.loads(request))
            for file in files:
                os.close(file)
            asking.send(b"%d" % process_id)
            code = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
            if seen.seek(0, os.SEEK_END):
                seen.seek(0)
                imports.make(*json.load(seen))
                gc.freeze()
            asking.send(b"%d" % code)


class Imports:
    """What runs import of `stepscope`, before they start a job and after that."""

    def __init__(self) -> None:
        self.loaded = set(sys.modules)
        self.after: Modules = {}
        self.before: list[str] | None = None

    def make(self, before: list[str], after: list[str]) -> None:
        """Import both; the second part is nowhere to be found until a job runs."""
        for name in before:
            importlib.import_module(name)
        self.loaded |= set(sys.modules)
        sys.modules.update(self.after)
        for name in after:
            importlib.import_module(name)
        self.after = {name: sys.modules.pop(name) for name in set(sys.modules) - self.loaded}

    def job_begins(self) -> None:
        """In the process that started it, which may have imported some of the rest already: then
        what was loaded is not its own."""
        if self.before is None:
            self.before = self._own()
        if not self.after.keys() & sys.modules.keys():
            sys.modules.update(self.after)

    def tell(self, seen: IO[bytes]) -> None:
        """What the next runs are to find loaded, where anything is new."""
        before = self.before or []
        after = [name for name in self._own() if name not in before]
        if self.before is not None and after:
            seen.write(json.dumps([before, after]).encode())
            seen.flush()

    def _own(self) -> list[str]:
        known = self.loaded | self.after.keys()
        return [name for name in sys.modules if name.startswith("stepscope.") and name not in known]


def _torch() -> Modules:
    """Its modules, imported, and nowhere to be found."""
    runpy.run_path(str(HERE.with_name("light_torch.py")))
    # What leaves out parts of it; a job brings its own.
    del sys.meta_path[0]
    return {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] in ("torch", "torchgen")
    }


def _become_stepscope(
    torch: Modules,
    imports: Imports,
    seen: IO[bytes],
    words: list[str],
    environment: dict[str, str],
    folder: str,
    whole_end: bool,
) -> NoReturn:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["stepscope", *words]
    _fork_scripts(torch, imports, whole_end)

    def main() -> None:
        if words[0] == sys.executable:
            sys.exit(subprocess.run(words, check=False, env=environment).returncode)
        from stepscope.cli.main import main as stepscope

        sys.exit(stepscope())

    code = _code_of(main)
    imports.tell(seen)
    # To take torch apart, as Python does at its end, would take longer than all of the above.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fork_scripts(torch: Modules, imports: Imports, whole_end: bool) -> None:
    """From now on this process forks where it would start a Python for a script."""
    is_old = not hasattr(subprocess, "_fork_exec")
    place: Any = sys.modules["_posixsubprocess"] if is_old else subprocess
    name = "fork_exec" if is_old else "_fork_exec"
    fork_exec, register = getattr(place, name), atexit.register
    handlers: list[Callable[..., object]] = []

    def registered(handler: Callable[..., object], *args: Any, **more: Any) -> Any:
        handlers.append(handler)
        return register(handler, *args, **more)

    def start(args: Sequence[Any], *more: Any) -> int:
        command = [os.fsdecode(word) for word in args]
        if command[0] != sys.executable or not command[1].endswith(".py"):
            process_id: int = fork_exec(args, *more)
            return process_id
        # What is buffered is this process's own to write.
        sys.stdout.flush()
        sys.stderr.flush()
        process_id = os.fork()
        if process_id == 0:
            vars(atexit)["register"] = register
            for handler in handlers:
                atexit.unregister(handler)
            setattr(place, name, fork_exec)
            _become_job(torch, whole_end, command[1:], *more)
        imports.job_begins()
        return process_id

    vars(atexit)["register"] = registered
    setattr(place, name, start)


def _become_job(
    torch: Modules,
    whole_end: bool,
    words: list[str],
    executables: object,
    close_fds: bool,
    pass_fds: object,
    folder: object,
    environment: list[bytes],
    *more: Any,
) -> NoReturn:
    """As `_posixsubprocess.fork_exec` has it from its caller, as far as jobs are given it."""
    assert close_fds
    assert folder is None
    to_stdin, _, _, to_stdout, _, to_stderr, _, _, _, new_session = more[:10]
    for number, file in enumerate((to_stdin, to_stdout, to_stderr)):
        if file != -1:
            os.dup2(file, number)
    os.closerange(3, 1024)
    if new_session:
        os.setsid()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_key = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_key else signal.SIG_DFL)
    os.environ.clear()
    for name, _, value in (each.partition(b"=") for each in environment):
        os.environb[name] = value
    for own in list(sys.modules):
        if own.partition(".")[0] in ("stepscope", "sitecustomize"):
            del sys.modules[own]
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.meta_path.insert(0, Loaded(torch))
    with suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    sys.path.insert(0, os.path.dirname(words[0]))
    sys.argv = words
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = words[0]

    def main() -> None:
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(module))  # noqa: S102

    code = _code_of(main)
    if whole_end:
        # Threads are waited for, handlers run, modules and libraries let go.
        ctypes.pythonapi.Py_Exit(ctypes.c_int(code))
    # The same but for what is let go, which is three quarters of what a short job takes.
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code)


class Loaded:
    """Finds torch, and loads it: by its names."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._spec, self._loader = modules["torch"].__spec__, modules["torch"].__loader__

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch":
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        module.__spec__, module.__loader__ = self._spec, self._loader
        sys.modules.update(self._modules)


def _code_of(main: Callable[[], object]) -> int:
    """What a Python ends with whose program this is."""
    try:
        main()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    except BaseException as problem:  # noqa: BLE001 - the outermost of all
        outermost = problem.__traceback__
        assert outermost is not None
        assert outermost.tb_next is not None
        # Without this function and `main`; and a debugger is told of it, too.
        problem = problem.with_traceback(outermost.tb_next.tb_next)
        told = type(problem), problem, problem.__traceback__
        sys.last_type, sys.last_value, sys.last_traceback = told
        sys.excepthook(*told)
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
