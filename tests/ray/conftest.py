"""A real Ray of its own for each module that asks for one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import serve

from headway_cli.cluster import start_ray
from tests.ray.clusters import GPU_TYPE, free_port


@pytest.fixture(scope="module")
def ray_cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ray and Serve on loopback, without dashboard, Serve's proxy on a free port; the cluster's address.

    A parameter is the number of GPUs that Ray is made to believe in.
    """
    with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        start_ray(
            num_cpus=4,
            num_gpus=getattr(request, "param", 0),
            labels={"ray.io/accelerator-type": GPU_TYPE},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
            yield ray.get_runtime_context().gcs_address
        finally:
            serve.shutdown()
            ray.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray leaves log files and sockets to the garbage collector, at any moment of any test here."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
