"""Programs of outside systems that come in through Ray Client: ray_client_programs.py NAME ADDRESS

They print what they saw as JSON. `bare` has Ray and nothing of ours; `package` uses our client as a plain
object.
"""

import json
import sys


def bare(address: str) -> dict[str, object]:
    for package in ("actors", "headway", "serve_apps"):
        sys.modules[package] = None  # type: ignore[assignment] - importing it fails from here on
    import ray

    ray.init(address, log_to_driver=False)
    client = ray.get_actor("VirtualConnectorClient", namespace="headway")
    decision = ray.get(client.wait.remote(20.0))
    try:
        ray.get(client.complete.remote(decision["decision_id"] + 1))
    except LookupError as error:
        refused = str(error).strip().splitlines()[-1]
    counted = ray.get(client.complete.remote(decision))
    return {"decision": decision, "counted": counted, "refused": refused}


def package(address: str) -> dict[str, object]:
    import ray

    from actors.virtual_connector import UnknownDecision, VirtualConnectorClient

    ray.init(address, log_to_driver=False)
    client = VirtualConnectorClient()
    decision = client.wait(20.0)
    assert decision is not None
    try:
        client.complete(decision.decision_id + 1)
    except UnknownDecision as error:
        refused = str(error)
    return {"decision": decision.document(), "counted": client.complete(decision), "refused": refused}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"bare": bare, "package": package}[sys.argv[1]](sys.argv[2])))
