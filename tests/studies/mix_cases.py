"""PoolNeeds made up of numbers, and the cheapest mix by trying every one."""

from itertools import product
from math import ceil, inf

from hypothesis import strategies as st

from headway_studies.gpu_mix.mix import MixRules, Supply
from headway_studies.gpu_mix.needs import PoolNeed, Share

TYPES = ("a", "b", "c")
POOLS = ("prefill", "decode")


def need(gpus=1, narrow=None, **replicas):
    """A pool that needs so many replicas of each type alone; `narrow`: (ratio, types) of a second share."""
    shares = [Share(requests=1000, replicas=replicas)]
    if narrow is not None:
        ratio, types = narrow
        shares.append(Share(requests=10, replicas={name: ratio * replicas[name] for name in types}))
    return PoolNeed(shares=tuple(shares), gpus_per_replica=dict.fromkeys(replicas, gpus))


def supply(**prices):
    return {name: Supply(price_per_gpu_hour=price) for name, price in prices.items()}


@st.composite
def problems(draw):
    """PoolNeeds, supply and rules, small enough to try every mix of."""
    types = TYPES[: draw(st.integers(1, 3))]
    replicas = st.floats(0.2, 3.0)
    offers = {
        name: Supply(
            price_per_gpu_hour=draw(st.floats(0.5, 4.0)), max_gpus=draw(st.none() | st.integers(0, 9))
        )
        for name in types
    }
    needs = {}
    for pool in POOLS[: draw(st.integers(1, 2))]:
        few = draw(st.none() | st.tuples(st.floats(0.05, 0.6), st.just(types[:-1] or types)))
        alone = {name: draw(replicas) for name in types}
        needs[pool] = need(gpus=draw(st.integers(1, 2)), narrow=few, **alone)
    running = {pool: {name: draw(st.integers(0, 2)) for name in types} for pool in needs}
    rules = MixRules(
        max_types=draw(st.none() | st.integers(1, 2)),
        max_gpus=draw(st.none() | st.integers(2, 14)),
        running=running,
        switching=draw(st.sampled_from([0.0, 0.2, 0.7])),
    )
    return needs, offers, rules


def tried(needs, offers, rules):
    """What the cheapest mix costs, with what is left of what ran; infinity where none is within limits."""
    options = {pool: list(_serving(each, rules.max_types)) for pool, each in needs.items()}
    return min((_cost(mix, needs, offers, rules) for mix in product(*options.values())), default=inf)


def _serving(each, max_types):
    """Counts that serve one pool: capacities in parts of the replicas needed alone, narrow share first."""
    wide, *few = each.shares
    types = list(each.gpus_per_replica)
    most = [ceil(sum(share.replicas.get(name, 0) for share in each.shares)) for name in types]
    for counts in product(*(range(top + 1) for top in most)):
        part = dict(
            zip(types, (n / wide.replicas[t] for n, t in zip(counts, types, strict=True)), strict=True)
        )
        asked = 1.0
        enough = True
        for share in few:
            ratio = next(share.replicas[name] / wide.replicas[name] for name in share.replicas)
            enough = sum(part[name] for name in share.replicas) >= ratio - 1e-9
            asked += ratio
        if enough and sum(part.values()) >= asked - 1e-9 and sum(map(bool, counts)) <= (max_types or 9):
            yield dict(zip(types, counts, strict=True))


def _cost(mix, needs, offers, rules):
    gpus = dict.fromkeys(offers, 0)
    cost = 0.0
    for (pool, each), counts in zip(needs.items(), mix, strict=True):
        for name, count in counts.items():
            gpus[name] += count * each.gpus_per_replica[name]
            left = max(0, rules.running[pool][name] - count)
            price = offers[name].price_per_gpu_hour * each.gpus_per_replica[name]
            cost += price * (count + rules.switching * left)
    within = all(offers[name].max_gpus is None or gpus[name] <= offers[name].max_gpus for name in offers)
    return cost if within and (rules.max_gpus is None or sum(gpus.values()) <= rules.max_gpus) else inf
