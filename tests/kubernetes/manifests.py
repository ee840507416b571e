"""Objects as users write them, and their status as the operators would write it."""

import textwrap
from typing import Any

MODEL = "Qwen/Qwen3-0.6B"

SERVE_CONFIG = textwrap.dedent(
    """\
    # Kept by hand: this comment matters.
    applications:
      - name: headway   # the one that Headway scales
        import_path: serve_apps.disagg:build
        route_prefix: /
        external_scaler_enabled: true
        args: {model: Qwen/Qwen3-0.6B}
        deployments:
          - name: Gateway
            num_replicas: 1
          - name: Prefill
            num_replicas: 2      # set by Headway
            ray_actor_options: {num_cpus: 1}
          - {name: Decode, num_replicas: 3, max_ongoing_requests: 64}
      - name: other
        import_path: other:app
        route_prefix: /other
        deployments:
          - name: Prefill
            num_replicas: 7
    """
)


def worker(role: str | None, replicas: int | None, *args: str, **more: Any) -> dict[str, Any]:
    """A worker service of a Dynamo graph."""
    service: dict[str, Any] = {
        "componentType": "worker",
        "envFromSecret": "hf-token-secret",
        "extraPodSpec": {"mainContainer": {"image": "engine:1", "args": list(args)}},
        **more,
    }
    if role is not None:
        service["subComponentType"] = role
    if replicas is not None:
        service["replicas"] = replicas
    return service


def graph(name: str = "llm", namespace: str = "prod", **services: dict[str, Any]) -> dict[str, Any]:
    """A Dynamo graph deployment with prefill and decode workers, settled."""
    services = services or {
        "VllmPrefillWorker": worker(
            "prefill", 2, "-m", "dynamo.vllm", "--model", MODEL, "--is-prefill-worker"
        ),
        "VllmDecodeWorker": worker("decode", 3, "-m", "dynamo.vllm", "--model", MODEL),
    }
    manifest = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "services": {
                "Frontend": {"componentType": "frontend", "replicas": 1},
                **services,
            }
        },
    }
    settle_graph(manifest)
    return manifest


def settle_graph(manifest: dict[str, Any]) -> None:
    """What the operator's status says once every replica is available."""
    services = manifest["spec"]["services"]
    manifest["status"] = {
        "state": "successful",
        "observedGeneration": manifest["metadata"].get("generation", 1),
        "conditions": [{"type": "Ready", "status": "True", "message": "all resources are ready"}],
        "services": {name: replica_status(service.get("replicas", 1)) for name, service in services.items()},
    }


def replica_status(ready: int, live: int | None = None) -> dict[str, Any]:
    """One service's entry in the status."""
    live = ready if live is None else live
    return {
        "componentKind": "Deployment",
        "replicas": live,
        "updatedReplicas": live,
        "readyReplicas": ready,
        "availableReplicas": ready,
    }


def workload(
    name: str, replicas: int, kind: str = "Deployment", api: str = "apps/v1", *args: str, **more: Any
) -> dict[str, Any]:
    """A Deployment, or another object with a scale subresource, settled."""
    containers = [{"name": "engine", "image": "engine:1", "args": list(args)}]
    template = {"spec": {"containers": containers}}
    spec: dict[str, Any] = {"replicas": replicas}
    if kind == "LeaderWorkerSet":
        spec["leaderWorkerTemplate"] = {"size": 2, "workerTemplate": template}
    else:
        spec["template"] = template
    metadata = {"name": name, "namespace": "prod", **more}
    manifest = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}
    settle_workload(manifest)
    return manifest


def settle_workload(manifest: dict[str, Any]) -> None:
    """The status once every replica is ready. As the API does, it leaves out what is 0."""
    count = manifest["spec"].get("replicas", 1)
    manifest["status"] = {"replicas": count, "readyReplicas": count} if count else {}


def adapter(graph_name: str, service: str, replicas: int) -> dict[str, Any]:
    """The scaling adapter of one service of a graph."""
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeploymentScalingAdapter",
        "metadata": {"name": f"{graph_name}-{service.lower()}", "namespace": "prod"},
        "spec": {"replicas": replicas, "dgdRef": {"name": graph_name, "serviceName": service}},
        "status": {"replicas": replicas},
    }


def ray_service(name: str = "llm", namespace: str = "prod", config: str = SERVE_CONFIG) -> dict[str, Any]:
    """A RayService, settled."""
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"serveConfigV2": config, "rayClusterConfig": {"rayVersion": "2.60.0"}},
    }
    settle_ray_service(manifest)
    return manifest


def settle_ray_service(manifest: dict[str, Any]) -> None:
    """What KubeRay's status says once Serve has taken the config and all is healthy."""
    deployments = {name: {"status": "HEALTHY"} for name in ("Gateway", "Prefill", "Decode")}
    manifest["status"] = {
        "serviceStatus": "Running",
        "observedGeneration": manifest["metadata"].get("generation", 1),
        "conditions": [{"type": "Ready", "status": "True"}],
        "activeServiceStatus": {
            "applicationStatuses": {"headway": {"status": "RUNNING", "serveDeploymentStatuses": deployments}}
        },
    }
