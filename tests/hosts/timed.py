"""How long faults take, measured and printed, a line each: `python -m tests.hosts.timed FAULT ...`

    cut20, cut70     the decode host is cut off for so long
    dies             the decode host loses power, and is there again 8 s later
    actors           `kill -9` of each actor of the control plane, one after the other
    gcs30            the GCS is away for so long, with Redis behind it
    head             all of Ray on the head dies, but not the Redis, and is started again 8 s later
    atonce           the same while the decode host is cut off, which is back 28 s after that
    starts10         so many fresh clusters: the first interval that was measured with traffic

`named` and `seen` count from the fault, `counted` from the host's return: until `status` names the host,
until an interval that began after the fault was measured, and until the counts are those of the processes
there. The load average of the machine is in each line: most of these times are Ray's, and long on a machine
that has no time.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.namespaces import Host
from tests.hosts.ray_hosts import REDIS, Load, RayHosts, ray_hosts, serve_file
from tests.hosts.test_faults import WITHIN_S, fault, gcs_is_back, whole
from tests.hosts.test_placement import CONTROL_ACTORS, seen

DEAD_S = 8.0
RATE_RPS = 3.0
SETTLED_S = 12.0
CUT_S = 28.0


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%T')} load {os.getloadavg()[0]:.0f}: {text}\n")
    sys.stdout.flush()


def told(load: Load) -> str:
    """How requests were answered, and the longest."""
    answers = ", ".join(f"{count} × {status}" for status, count in sorted(load.statuses().items()))
    return f"{answers}, longest {max(each.took_s for each in load.asked):.1f} s"


def until(cluster: RayHosts, holds: Callable[[], object], since_s: float) -> float:
    """Seconds from `since_s` until it held."""
    cluster.wait_until("what is measured", holds, WITHIN_S)
    return time.time() - since_s


def host_fault(cluster: RayHosts, what: str, begin: Callable[[], None], seconds: float) -> None:
    with Load(cluster, RATE_RPS) as load:
        time.sleep(SETTLED_S)
        at_s = time.time()
        begin()
        named_s = until(
            cluster, lambda: fault(cluster, "decode").get("state") in ("unreachable", "lost"), at_s
        )
        seen_s = until(cluster, lambda: newest_since(cluster, at_s), at_s)
        time.sleep(max(0.0, seconds - (time.time() - at_s)))
        back_s = time.time()
        started: list[float] = []

        def right() -> bool:
            if cluster.mend():
                started.append(time.time() - back_s)
            return whole(cluster)

        counted_s = until(cluster, right, back_s)
        time.sleep(SETTLED_S)
    again = (
        f" (Ray started again there after {started[-1]:.1f} s)" if started else " (Ray had not ended there)"
    )
    say(f"{what}: named {named_s:.1f} s, seen {seen_s:.1f} s, counted {counted_s:.1f} s{again}; {told(load)}")


def newest_since(cluster: RayHosts, at_s: float) -> bool:
    """True if a decision was made on an interval that began since then."""
    measured = cluster.status().get("measured") or {}
    return (measured.get("start_s") or 0.0) >= at_s


def actors(cluster: RayHosts) -> None:
    for name in (*CONTROL_ACTORS, "ServeReplica:headway:ControlPlane"):
        title = f"ray::{name}"
        with Load(cluster, RATE_RPS) as load:
            time.sleep(SETTLED_S / 2)
            last, at_s = cluster.newest(), time.time()
            for host in cluster.hosts.values():
                for pid in host.processes(title):
                    os.kill(pid, 9)
            seen_s = until(cluster, lambda: seen(cluster, at_s) and cluster.newest() > last, at_s)  # noqa: B023
        say(f"kill -9 {name}: seen {seen_s:.1f} s, ids from {last} to {cluster.newest()}; {told(load)}")


def attained(cluster: RayHosts) -> float:
    """The share of all requests so far that met the SLO."""
    cluster.wait_until("a status", cluster.status, WITHIN_S)
    return float(cluster.status()["attainment"]["total"])


def gcs(cluster: RayHosts, seconds: float) -> None:
    with Load(cluster, RATE_RPS) as load:
        time.sleep(SETTLED_S)
        before = attained(cluster)
        start_again, at_s, slowest_s = cluster.end_gcs(), time.time(), 0.0
        answers: list[bool] = []
        while time.time() - at_s < seconds:
            asked_s = time.time()
            answers.append(bool(cluster.status()))
            slowest_s = max(slowest_s, time.time() - asked_s)
            time.sleep(0.5)
        start_again()
        back_s = time.time()
        planning_s = until(cluster, lambda: gcs_is_back(cluster), back_s)
        time.sleep(SETTLED_S)
    ids = [each["id"] for each in cluster.get("/v1/control/decisions?limit=1000")["decisions"]]
    gap = "without a gap" if ids == list(range(ids[0], ids[0] + len(ids))) else f"WITH A GAP {ids}"
    after = attained(cluster)
    said = f"{sum(answers)} of {len(answers)} statuses answered, the slowest after {slowest_s:.1f} s"
    share = f"attained {before:.3f} before and {after:.3f} after"
    back = f"planning {planning_s:.1f} s after it was back"
    say(f"GCS away {seconds:g} s: {back}, {said}, ids to {ids[-1]} {gap}, {share}; {told(load)}")


def head(cluster: RayHosts, cut: Host | None) -> None:
    """The head dies and is back; `cut`: another host is cut off before that, and for longer."""
    engines = cluster.engines()
    with Load(cluster, RATE_RPS) as load:
        time.sleep(SETTLED_S)
        before = cluster.newest()
        if cut is not None:
            cut.cut()
        at_s = time.time()
        cluster.head.kill_all(but=REDIS)
        # Its successor has none of its files: with them `ray start` takes other hosts' Ray for its own.
        for each in cluster.head.files.iterdir():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        time.sleep(DEAD_S)
        cluster.start_ray("head")
        if cut is not None:
            time.sleep(max(0.0, CUT_S - (time.time() - at_s)))
            cut.mend()
        back_s = time.time()
        serves_s = until(cluster, lambda: cluster.complete(5.0) == 200, back_s)
        planning_s = until(cluster, lambda: newest_since(cluster, back_s), back_s)
        counted_s = until(cluster, lambda: (cluster.mend(), whole(cluster))[1], back_s)
        time.sleep(SETTLED_S)
    ids = [each["id"] for each in cluster.get("/v1/control/decisions?limit=1000")["decisions"]]
    gap = "without a gap" if ids == list(range(ids[0], ids[0] + len(ids))) else f"WITH A GAP {ids}"
    kept = len(engines & cluster.engines())
    what = "head dies" if cut is None else f"head dies while {cut.name} is cut off"
    after = f"back after {back_s - at_s:.1f} s; from there served {serves_s:.1f} s, seen {planning_s:.1f} s"
    counts = f"counted {counted_s:.1f} s, {kept} of {len(engines)} engines served on"
    say(f"{what}: {after}; {counts}; ids {before} to {ids[-1]} {gap}; {told(load)}")


@contextmanager
def started() -> Iterator[RayHosts]:
    """Headway on three fresh hosts, and how long it took until the planner saw traffic."""
    with tempfile.TemporaryDirectory(prefix="hw-timed-") as folder, ray_hosts(Path(folder)) as cluster:
        at_s = time.time()
        cluster.deploy(serve_file(Path(folder)))
        served_s = until(cluster, lambda: cluster.complete(5.0) == 200, at_s)
        with Load(cluster, RATE_RPS) as load:
            seen_s = until(cluster, lambda: seen(cluster, at_s), at_s)
        places = ", ".join(f"{name} on {'/'.join(cluster.where(f'ray::{name}'))}" for name in CONTROL_ACTORS)
        say(f"start: serves {served_s:.1f} s, seen {seen_s:.1f} s after deploy; {places}; {told(load)}")
        yield cluster


def main(faults: list[str]) -> None:
    for what in [each for each in faults if each.startswith("starts")]:
        for _ in range(int(what.removeprefix("starts"))):
            with started():
                pass
    if others := [each for each in faults if not each.startswith("starts")]:
        with started() as cluster:
            for what in others:
                try:
                    one(cluster, what)
                except AssertionError as error:
                    say(f"{what}: NOT AS ASKED: {error}")


def one(cluster: RayHosts, what: str) -> None:
    """One of the faults."""
    decode = cluster.hosts["decode"]
    if what.startswith("cut"):
        host_fault(cluster, what, decode.cut, float(what.removeprefix("cut")))
    elif what == "dies":
        host_fault(cluster, what, decode.die, DEAD_S)
    elif what == "actors":
        actors(cluster)
    elif what in ("head", "atonce"):
        head(cluster, decode if what == "atonce" else None)
    else:
        gcs(cluster, float(what.removeprefix("gcs")))


if __name__ == "__main__":
    main(sys.argv[1:])
