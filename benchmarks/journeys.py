"""Files whose code runs while a planner decides once, and while one request is routed and answered.

The live system of a checkout runs as its users start it (`headway up`), with simulated engines, the default
policy, and routing by SLO. A profiler hook in each of its Python processes notes which files have a function
called between two marks; a mark is a file that all processes watch for. Functions that numba compiled are
seen only where Python calls them, not where they call each other.

    tick      the processes of MetricCollector, Predictor, Interpolator and Planner, from before a tick until
              its decision is in the log, while requests come
    request   the processes of gateway, replicas and Router, while one streamed completion is served

Background work of these processes that falls between the marks counts too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.size import PACKAGES

SETTINGS = """
model: llama-3.1-8b
slo: {ttft_ms: 3000, itl_ms: 300}
engine: {kind: simulated, profile: llama-3.1-8b_h100_tp1, time_scale: 0.2}
pools: {prefill: {max_replicas: 1}, decode: {max_replicas: 1}}
planner: {adjustment_interval_s: 5}
routing: {profile: slo}
gateway: {port: 0}
"""
TICK_ACTORS = ("MetricCollector", "Predictor", "Interpolator", "Planner")
REQUEST_PROCESSES = ("Gateway", "Prefill", "Decode", "Engine", "Router", "Serve")
READY_WITHIN_S, WITHIN_S = 240.0, 120.0

HOOK = '''
import functools, inspect, os, sys, threading, time
folder, root = os.environ["HEADWAY_JOURNEY"], os.environ["HEADWAY_JOURNEY_ROOT"]
called = set()
def note(frame, event, argument, add=called.add):
    if event == "call":
        add(frame.f_code.co_filename)
def hook_threads_of_ray():
    """Threads that C++ starts run actor methods without the hook until they set it themselves."""
    manager = sys.modules["ray._private.function_manager"].FunctionActorManager
    make = manager._make_actor_method_executor
    def make_hooked(*arguments, **options):
        run = make(*arguments, **options)
        if inspect.iscoroutinefunction(run):
            return run
        @functools.wraps(run)
        def hooked(*arguments, **options):
            sys.setprofile(note)
            return run(*arguments, **options)
        return hooked
    manager._make_actor_method_executor = make_hooked
def watch():
    number, hooked = 0, False
    while True:
        begin, end = f"{folder}/begin-{number}", f"{folder}/end-{number}"
        while not os.path.exists(begin):
            loaded = sys.modules.get("ray._private.function_manager")
            if not hooked and hasattr(loaded, "FunctionActorManager"):
                hooked = True
                hook_threads_of_ray()
            time.sleep(0.01)
        called.clear()
        while not os.path.exists(end):
            time.sleep(0.01)
        files = sorted(name[len(root) + 1 :] for name in list(called) if name.startswith(root + "/"))
        if files:
            title = open("/proc/self/cmdline", "rb").read().replace(b"\\0", b" ").decode(errors="replace")
            with open(f"{folder}/called-{number}-{os.getpid()}.part", "w") as out:
                out.write("\\n".join([title.strip(), *files]))
            os.rename(out.name, out.name[: -len(".part")])
        number += 1
threading.Thread(target=watch, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
'''


def print_journeys(checkout: Path) -> None:
    """Run the system of that checkout and print both journeys, file by file."""
    for name, files in journeys(checkout).items():
        print(f"\nfiles of one {name:24}{len(files):5}")
        for package in sorted({file.split("/")[0] for file in files}):
            inside = [file.removeprefix(f"{package}/") for file in files if file.startswith(f"{package}/")]
            print(f"    {package:12} {len(inside):3}  {' '.join(inside)}")


def journeys(checkout: Path) -> Mapping[str, list[str]]:
    """The files that a tick and a request touch, by journey; paths below the checkout, sorted."""
    with tempfile.TemporaryDirectory(prefix="hw-journey-", dir="/tmp") as folder:
        with _live_system(checkout, Path(folder)) as url:
            for _ in range(3):
                _complete(url)
            _wait_for(lambda: _latest_decision(url) >= 2, "three decisions")
            _mark(folder, "begin", 0)
            _complete(url)
            _mark(folder, "end", 0)
            _complete(url)
            known = _latest_decision(url)
            _mark(folder, "begin", 1)
            _wait_for(lambda: _latest_decision(url) > known, "a decision")
            _mark(folder, "end", 1)
        return {
            "routed request": _files_called(folder, 0, REQUEST_PROCESSES),
            "planner tick": _files_called(folder, 1, TICK_ACTORS),
        }


@contextmanager
def _live_system(checkout: Path, folder: Path) -> Iterator[str]:
    """`headway up` of the checkout with the hook in all of its processes; the gateway's address."""
    (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    (folder / "settings.yaml").write_text(SETTINGS, encoding="utf-8")
    environment = {
        **os.environ,
        "HEADWAY_JOURNEY": str(folder),
        "HEADWAY_JOURNEY_ROOT": str(checkout),
        "PYTHONPATH": f"{folder}:{checkout}",
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "headway_cli", "up", str(folder / "settings.yaml")],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("OpenAI API")), None)
        if line is None:
            raise RuntimeError(f"headway up of {checkout} did not start")
        url = line.split()[-1].removesuffix("/v1")
        _wait_for(lambda: _get(f"{url}/ready") is not None, "ready", READY_WITHIN_S)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _mark(folder: str, name: str, number: int) -> None:
    Path(folder, f"{name}-{number}").touch()
    time.sleep(0.2)  # Processes look for marks every 10 ms.


def _files_called(folder: str, number: int, processes: tuple[str, ...]) -> list[str]:
    """Files in which a function was called between the marks, in processes whose title has such a word."""
    files: set[str] = set()
    for record in Path(folder).glob(f"called-{number}-*[0-9]"):
        title, *called = record.read_text(encoding="utf-8").splitlines()
        if title.startswith("ray::") and any(word in title for word in processes):
            files.update(name for name in called if name.split("/")[0] in PACKAGES)
    return sorted(files)


def _complete(url: str) -> None:
    body = {"model": "llama-3.1-8b", "prompt": "hello " * 200, "max_tokens": 4, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        answer.read()


def _latest_decision(url: str) -> int:
    answer: Any = _get(f"{url}/v1/control/decisions?limit=1000")
    records = answer["decisions"] if isinstance(answer, Mapping) else answer or []
    return max((int(record["id"]) for record in records), default=-1)


def _get(url: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON at that address, None while it answers with an error."""
    try:
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def _wait_for(done: Callable[[], bool], what: str, seconds: float = WITHIN_S) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.1)
