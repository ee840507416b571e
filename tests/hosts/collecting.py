"""Run on a host: a MetricCollector on the host with the address given, and what it sees of our gateway."""

import sys
import time

import ray
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from tests.hosts.ray_hosts import join
from tests.stores import MemoryStore

INTERVAL_S = 3.0


class Placed(MetricCollector):
    """A collector that says where it is."""

    async def place(self) -> str:
        """Its host's address."""
        return str(get_node_ip_address())


def main() -> None:
    join()
    (node,) = [each for each in ray.nodes() if each["NodeManagerAddress"] == sys.argv[1] and each["Alive"]]
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    kind = ray.remote(Placed).options(scheduling_strategy=there, num_cpus=0)
    collector = kind.remote(HeadwayConfig().model_dump_json(), "headway", MemoryStore())
    ray.get(collector.ready.remote(), timeout=120)
    time.sleep(INTERVAL_S + 1.0)
    measured = ray.get(collector.collect.remote(INTERVAL_S), timeout=120)
    found = "requests" if measured.requests else "none"
    sys.stdout.write(f"{ray.get(collector.place.remote())} {measured.health.status} {found}")


if __name__ == "__main__":
    main()
