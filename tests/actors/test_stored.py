"""Stored documents: what was stored comes back, and whatever else lies there ends no actor."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from pathlib import Path

import msgspec
import numpy as np
import pytest

from actors.collector.scrape import STATE, ScrapeSource
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from actors.connectors.drift import drift_aware
from actors.interpolator import CALIBRATION, Interpolator
from actors.planning.advice import LiveAdvice
from actors.planning.log import PREFIX, DecisionLog, load_memory
from actors.planning.settings import KEY as SETTINGS
from actors.planning.settings import RuntimeSettings
from actors.predictor import HISTORY, LoadHistory, ObservedLoad
from actors.store import Store
from actors.stored import Kind, opened, put, read, sealed, set_aside
from actors.virtual_connector.coordinator import KEY as LEDGER
from actors.virtual_connector.coordinator import StoredLedger
from headway.config import HeadwayConfig, load_config
from headway.planning import Role, make_policy, policy_settings
from headway.planning.types import FloatArray
from interp import save_profile
from tests.actors.collector_cases import HEADWAY, Pages, Process
from tests.actors.planner_cases import Deployment, ScriptedPools, settings
from tests.actors.virtual_cases import RULES
from tests.clocks import Clock
from tests.engines.virtual_loop import run as in_virtual_time
from tests.exporter import MODEL
from tests.planning.planning_cases import OBSERVED, PROFILE
from tests.stores import FailingStore, MemoryStore


@dataclass(frozen=True)
class Inner:
    values: FloatArray
    role: Role = Role.DECODE
    longest_s: float = inf


@dataclass(frozen=True)
class Outer:
    parts: tuple[Inner, ...] = ()
    counts: dict[Role, int] = field(default_factory=dict)


KIND = Kind("outer", Outer)


def test_arrays_enumerations_and_what_is_not_finite_come_back():
    store = MemoryStore()
    put(store, KIND, "a", Outer((Inner(np.array([1.0, nan, -inf])),), {Role.PREFILL: 3}))
    found = read(store, KIND, "a", lambda value: value)
    assert found is not None
    (part,) = found.parts
    assert part.values[0] == 1.0
    assert isnan(part.values[1])
    assert [part.values[2], part.longest_s, part.role] == [-inf, inf, Role.DECODE]
    assert found.counts == {Role.PREFILL: 3}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nonsense", "no document of kind outer"),
        (sealed(KIND, "another key", Outer()), "the checksum is another"),
        (sealed(KIND, "a", Outer())[:-1], "the checksum is another"),
        (sealed(KIND._replace(version=2), "a", Outer()), "of version 2"),
        (sealed(Kind("inner", Inner), "a", Outer()), "no document of kind outer"),
        (sealed(KIND, "a", {"parts": "many"}), "Expected `array`"),
        (b"[" * 100_000, "RecursionError"),
    ],
)
def test_what_is_no_such_document_is_set_aside_and_named(caplog, data, said):
    store = MemoryStore()
    store.put("a", data)
    assert read(store, KIND, "a", lambda value: value) is None
    assert said in caplog.text
    (aside,) = store.keys("aside/")
    assert store.get(aside) == data
    assert list(set_aside(store, 0.0)) == ["a"]
    assert read(store, KIND, "a", lambda value: value) is None
    assert len(store.keys("aside/")) == 1


def test_a_value_that_is_no_plain_data_is_not_stored():
    with pytest.raises(TypeError, match="is no plain data"):
        sealed(KIND, "a", Outer(parts=(object(),)))  # type: ignore[arg-type] # that is the point


def test_a_store_that_takes_nothing_ends_nobody():
    class ReadOnly(MemoryStore):
        def put(self, key: str, value: bytes) -> None:
            raise OSError("read-only")

    store = ReadOnly()
    store._values["a"] = b"nonsense"
    assert read(store, KIND, "a", lambda value: value) is None


def copied(stored: Stored) -> FailingStore:
    store = FailingStore()
    store._values = dict(stored.store._values)
    return store


def test_with_a_store_that_takes_nothing_every_actor_starts_and_learns(stored, caplog):
    store = copied(stored)
    store.fault = OSError("No space left on device")
    for key in store.keys(""):
        if key != LEDGER:
            stored.start(store, key)
    learner = stored.interpolator(store)
    before = learner.model()
    learner.calibrate(replace(OBSERVED, now_s=OBSERVED.now_s + 10.0))
    assert learner.model() != before
    assert f"{CALIBRATION} is not stored, a restart would not know it: No space left" in caplog.text
    # What others act on is promised only where it is kept.
    with pytest.raises(OSError, match="No space left"):
        stored.start(store, LEDGER)
    with pytest.raises(OSError, match="No space left"):
        RuntimeSettings(stored.config, store).update({"slo.ttft_ms": 250})


def test_plain_json_of_before_is_read():
    store = MemoryStore()
    store.put("a", b'{"counts": {"decode": 2}}')
    assert opened(KIND, "a", store.get("a") or b"") == Outer(counts={Role.DECODE: 2})


# --- everything that actors store


@dataclass
class Stored:
    """A store in which every actor has left what it knows."""

    config: HeadwayConfig
    profile: Path
    store: MemoryStore

    def start(self, store: Store, key: str) -> None:
        """What the constructor of the actor reads to which the key belongs."""
        if key.startswith(PREFIX):
            policy = make_policy("headway", policy_settings(self.config, PROFILE), PROFILE)
            load_memory(DecisionLog(store).memory).state_for(policy)
        elif key.startswith("planner/a"):
            LiveAdvice(store)
        elif key.startswith("planner/"):
            RuntimeSettings(self.config, store)
        elif key.startswith("predictor/"):
            LoadHistory(store, 10.0)
        elif key.startswith("connector/"):
            drift_aware(ScriptedPools(), lambda: self.config, store, Clock())
        elif key.startswith("interpolator/"):
            self.interpolator(store)
        elif key.startswith("collector/"):
            tracker = Tracker(ModelSeries(HEADWAY, MODEL), 1.0)
            ScrapeSource(tracker, None, store, clock=Clock())  # type: ignore[arg-type] # not read
        else:
            assert key == LEDGER
            ledger = StoredLedger(store, RULES, Clock(2_000_000_000.0))
            replicas = ledger.ledger.last_id % 1000 + 2
            assert ledger.propose({"prefill": replicas, "decode": 10}, {})["decision_id"] > self.issued

    @property
    def issued(self) -> int:
        return StoredLedger(self.store, RULES, Clock()).ledger.last_id

    def interpolator(self, store: Store) -> Interpolator:
        return Interpolator(
            load_config(None, {"engine.profile": str(self.profile)}).model_dump_json(),
            store,
            map(float, itertools.count(step=5)).__next__,
        )


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Stored:
    profile = tmp_path_factory.mktemp("stored") / "profile"
    save_profile(profile, PROFILE.prefill.samples, PROFILE.decode.samples, dict(PROFILE.meta))
    config = settings(planner__policy="headway", planner__dry_run=True)
    deployment = Deployment(config=config)
    in_virtual_time(deployment.run_for(65.0))
    found, store = Stored(config, profile, deployment.store), deployment.store
    history = LoadHistory(store, 10.0)
    for tick in range(300):
        history.add(ObservedLoad(tick=tick, requests=1.0, isl_tokens=nan, osl_tokens=1.0))
    found.interpolator(store).calibrate(OBSERVED)
    ledger = StoredLedger(store, RULES, Clock())
    for replicas in (2, 3):
        ledger.propose({"prefill": replicas, "decode": 1}, {})
        ledger.answer(ledger.ledger.last_id)
    pages, process = Pages(HEADWAY), Process()
    for at_s in (1.0, 2.0):
        pages.read(process, at_s)
    from actors.collector.scrape import KIND as COLLECTED

    put(store, COLLECTED, STATE, {"tracker": pages.tracker.state(), "read_s": {"gateway": 2.0}})
    return found


def test_every_kind_is_there(stored):
    for key in (PREFIX, SETTINGS, "planner/advice/hours/", HISTORY, CALIBRATION, LEDGER, STATE):
        assert stored.store.keys(key), key


def flipped(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << (place % 8)
    return bytes(changed)


def damaged(store: MemoryStore, rng: random.Random) -> tuple[MemoryStore, str]:
    """A copy with one fault; the key that has it."""
    copy = MemoryStore()
    copy._values = dict(store._values)
    keys = [key for key in copy.keys("") if copy.get(key)]
    key, other = rng.choice(keys), rng.choice(keys)
    data = copy.get(key) or b""
    foreign = rng.choice([PREFIX, "planner/advice/hours/", HISTORY]) + rng.choice(
        ["x", "", "9" * 5000, "-1", "½"]
    )
    faults: list[Callable[[], tuple[str, bytes]]] = [
        lambda: (key, flipped(data, rng)),
        lambda: (key, data[: rng.randrange(len(data))]),
        lambda: (key, copy.get(other) or b""),
        lambda: (key, rng.randbytes(rng.randrange(200))),
        lambda: (key, rng.choice([b"[" * 50_000, b'{"a":' * 50_000, b"1e999", b"{}", b"[]", b"null"])),
        lambda: (
            key,
            data.partition(b"\n")[0] + b"\n" + msgspec.msgpack.encode(rng.choice([None, {}, [1], 2**63])),
        ),
        lambda: (foreign, data),
    ]
    place, value = rng.choice(faults)()
    copy.put(place, value)
    return copy, place


def fuzz(stored: Stored, times: int, seed: int) -> None:
    first, rng = DecisionLog(stored.store).next_id, random.Random(seed)
    for _ in range(times):
        store, key = damaged(stored.store, rng)
        stored.start(store, key)
        assert DecisionLog(store).next_id >= first, key


def test_whatever_the_store_holds_all_actors_start_and_no_id_comes_back(stored):
    fuzz(stored, times=300, seed=1)


@pytest.mark.slow
def test_the_same_many_times(stored):
    fuzz(stored, times=100_000, seed=2)
