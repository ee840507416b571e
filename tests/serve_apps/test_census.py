"""What a gateway tells the router of its replicas."""

from headway.planning import Role
from headway.routing import ReplicaUpdate
from serve_apps.membership import Membership
from serve_apps.routed.replicas import ReplicaDiff

LOAD = {"running": 0, "waiting": 0, "kv_usage": 0.0}


def test_a_gpu_type_that_is_reported_later_is_news():
    pool = Membership()
    census = ReplicaDiff({Role.MIXED: pool}, lambda replica: False)
    pool.update([("a", {})])
    assert census.news(0.0) == [ReplicaUpdate(replica="a", role=Role.MIXED)]
    pool.update([("a", {**LOAD, "gpu_type": "L20"})])
    (update,) = census.news(1.0)
    assert update.gpu_type == "L20"
    pool.update([("a", {**LOAD, "gpu_type": "L20"})])
    assert not census.news(2.0)
