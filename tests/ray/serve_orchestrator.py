"""An outside orchestrator in Python: serve_orchestrator.py ADDRESS APPLICATION JOURNAL

It waits for decisions through VirtualConnectorClient, sets the replica counts of a Serve application, waits
until they run, and acknowledges. What it does stands in its journal.
"""

import sys
import time

import ray
from ray import serve

from actors.virtual_connector import CoordinatorUnreachable, VirtualConnectorClient
from tests.ray.clusters import scale

DEPLOYMENTS = {"prefill": "Prefill", "decode": "Decode"}


def main(address: str, application: str, journal: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="error")
    client = VirtualConnectorClient()
    with open(journal, "a", encoding="utf-8", buffering=1) as book:
        while True:
            try:
                decision = client.wait(5.0)
            except CoordinatorUnreachable:
                time.sleep(0.5)
                continue
            if decision is None:
                continue
            targets = {role.value: count for role, count in decision.targets.items()}
            book.write(f"begin {decision.decision_id} {targets['prefill']} {targets['decode']}\n")
            for role, count in targets.items():
                scale(application, DEPLOYMENTS[role], count)
            while running(application) != targets:
                time.sleep(0.2)
            client.complete(decision)
            book.write(f"done {decision.decision_id}\n")


def running(application: str) -> dict[str, int]:
    deployments = serve.status().applications[application].deployments
    return {role: deployments[name].replica_states.get("RUNNING", 0) for role, name in DEPLOYMENTS.items()}


if __name__ == "__main__":
    main(*sys.argv[1:4])
