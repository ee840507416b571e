"""Real local Rays, shared by the modules that can: one at a time for each process that runs tests."""

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import ray
from ray import serve

from actors import control_plane
from headway.engine.kinds import SHARED_GPU
from headway_cli.cluster import start_ray
from tests.ports import free_port
from tests.ray.clusters import GPU_TYPE, GPUS, wait_until

LINES = 12
"""Of each of Serve's logs, in the report of a test that failed."""


class LocalRay:
    """The Ray that this process runs, with or without Serve's HTTP proxy; another kind takes its place."""

    def __init__(self) -> None:
        self._kind: tuple[bool, bool] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def use(self, *, proxy: bool, shared_gpus: bool = False) -> str:
        """The address of a Ray on loopback of that kind."""
        if self._kind != (proxy, shared_gpus):
            self.end()
            self._start(proxy, shared_gpus)
        return str(ray.get_runtime_context().gcs_address)

    def _start(self, proxy: bool, shared_gpus: bool) -> None:
        folder = tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp", ignore_cleanup_errors=True)
        self._folder, self._kind = folder, (proxy, shared_gpus)
        start_ray(
            num_cpus=4,
            num_gpus=0 if shared_gpus else GPUS,
            # As the nodes of cluster.yaml declare.
            resources={
                "gateway": 1,
                "prefill": 2,
                "decode": 2,
                **({SHARED_GPU: GPUS} if shared_gpus else {}),
            },
            labels={"ray.io/accelerator-type": GPU_TYPE},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder.name,
        )
        if proxy:
            serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
        else:
            serve.start(proxy_location="Disabled")

    def end(self) -> None:
        """End it, so that a test can start a Ray of its own."""
        if self._folder is None:
            return
        serve.shutdown()
        ray.shutdown()
        self._folder.cleanup()
        self._folder = self._kind = None

    def told(self) -> str:
        """The last lines of Serve's logs: what its controller and each replica did."""
        folder = self._folder and Path(self._folder.name, "session_latest", "logs", "serve")
        logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime) if folder else []
        tails = {path.name: path.read_text(errors="replace").splitlines()[-LINES:] for path in logs}
        return "\n".join(f"{name}: {line}" for name, lines in tails.items() for line in lines)

    def clear(self) -> None:
        """Leave nothing of a module to the next: applications, and the control plane with what it stored."""
        if self._folder is None:
            return
        for app in list(serve.status().applications):
            serve.delete(app)
        control_plane.stop(purge=True)
        wait_until(lambda: not control_plane.running())


LOCAL = LocalRay()


@pytest.fixture(scope="session")
def local_ray() -> Iterator[LocalRay]:
    """What `ray_cluster` starts; for a module that starts a Ray of its own and so must end this one."""
    try:
        yield LOCAL
    finally:
        LOCAL.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed says what Serve did: the logs go with their Ray."""
    report = yield
    if report.failed and (told := LOCAL.told()):
        report.sections.append(("Serve", told))
    return report


@pytest.fixture(scope="module")
def ray_cluster(local_ray: LocalRay) -> Iterator[str]:
    """Ray and Serve on loopback, without dashboard and proxy; the cluster's address.

    One head for all modules of a process: what a module leaves is cleared, and a head takes 10 s to start.
    """
    yield local_ray.use(proxy=False)
    local_ray.clear()


@pytest.fixture(scope="module")
def ray_with_proxy(local_ray: LocalRay) -> Iterator[str]:
    """The same with Serve's HTTP proxy on a free port, as users' `serve run` has it.

    A head of its own: Serve starts its proxy with itself or never. One module needs it, and no other asks.
    """
    yield local_ray.use(proxy=True)
    local_ray.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray leaves log files and sockets to the garbage collector, at any moment of any test here."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of our command with its state in this test's folder."""
    names = ("HEADWAY_URL", "HEADWAY_API_KEY", "HEADWAY_API_KEYS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state")}
