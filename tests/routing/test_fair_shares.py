"""Virtual counters: shares by weight, no credit for what was not wanted, bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.routing.queue import fair_shares
from headway.routing.queue.fair_shares import ALLOWANCE, MOST_COUNTERS, FairShares, TenantShares, cost_of
from tests.memory import grown_bytes


def shares(**weights: float) -> FairShares:
    return FairShares(lambda tenant: weights.get(tenant, 1.0))


def given_out(of: FairShares, tenants: list[str], cost: float, rounds: int) -> dict[str, float]:
    """All of them always want more: the one that is next is served."""
    for tenant in tenants:
        of.waits(tenant)
    total = dict.fromkeys(tenants, 0.0)
    for _ in range(rounds):
        tenant = min(tenants, key=of.start)
        of.served(tenant, cost)
        total[tenant] += cost
    return total


def test_output_tokens_count_twice():
    assert cost_of(100.0, 50.0) == 200.0


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_those_that_always_want_more_share_by_weight(first, second):
    total = given_out(shares(a=first, b=second), ["a", "b"], 100.0, 4000)
    assert total["a"] / total["b"] == pytest.approx(first / second, rel=0.05)


def test_what_nobody_else_wanted_is_no_debt_and_no_credit():
    of = shares()
    for _ in range(100):
        of.served("busy", 1e5)
    of.waits("busy")
    of.waits("new")
    assert not of.ahead("busy") or of.start("busy") - of.start("new") <= 1e5
    of.served("busy", 1e5)
    of.served("new", 1.0)
    assert of.ahead("busy")
    assert not of.ahead("new")


def test_a_tenant_alone_is_never_ahead():
    of = shares()
    of.waits("alone")
    for _ in range(10):
        of.served("alone", 1e6)
        assert not of.ahead("alone")


def test_a_little_ahead_is_not_ahead():
    of = shares()
    of.waits("a")
    of.waits("b")
    of.served("a", ALLOWANCE)
    assert not of.ahead("a")
    of.served("a", 1.0)
    assert of.ahead("a")


def test_what_was_charged_too_much_comes_back():
    of = shares(a=2.0)
    of.waits("a")
    of.waits("b")
    of.served("a", 4 * ALLOWANCE)
    assert of.ahead("a")
    of.returned("a", 3 * ALLOWANCE)
    assert not of.ahead("a")
    assert of.start("a") == ALLOWANCE / 2


def test_counters_do_not_grow_with_the_names_that_clients_make_up():
    of = shares()
    for number in range(3 * MOST_COUNTERS):
        of.served(f"user-{number}", 10.0)
    remembered = sum(of.start(f"user-{number}") > 0.0 for number in range(3 * MOST_COUNTERS))
    assert 0 < remembered <= MOST_COUNTERS + 1


def test_many_that_wait_are_not_sorted_for_each_that_comes(monkeypatch):
    of, sorts = shares(), []
    monkeypatch.setattr(
        fair_shares, "sorted", lambda *a, **k: sorts.append(1) or sorted(*a, **k), raising=False
    )
    for number in range(3 * MOST_COUNTERS):
        of.waits(f"user-{number}")
        of.served(f"user-{number}", 10.0)
    assert all(of.start(f"user-{number}") == 10.0 for number in range(3 * MOST_COUNTERS))
    assert len(sorts) < 5


def test_the_order_of_those_that_wait_holds_no_more_than_they_are():
    of = shares()
    of.waits("first")

    def come_and_go() -> None:
        for _ in range(5000):
            of.waits("user")
            of.served("user", 10.0)
            of.waits_no_more("user")

    assert grown_bytes(come_and_go) < 20_000


class TestUsersOfKeys:
    def of(self, **weights: float) -> TenantShares:
        return TenantShares(lambda tenant: weights.get(tenant.replace("/", "_"), 1.0))

    def test_a_user_is_ahead_within_the_key_alone(self) -> None:
        of = self.of()
        for tenant in ("portal/a", "portal/b", "other"):
            of.waits(tenant)
        steps = (
            ("other", [False, False, True]),
            ("portal/a", [True, False, False]),
            ("portal/b", [True, True, False]),
            ("other", [False, False, False]),
        )
        for served, ahead in steps:
            of.served(served, 2 * ALLOWANCE)
            assert [of.ahead(name) for name in ("portal/a", "portal/b", "other")] == ahead

    def test_what_a_user_had_is_no_matter_while_no_other_of_the_key_waits(self) -> None:
        of = self.of()
        of.waits("other")
        of.served("portal/a", ALLOWANCE / 2)
        of.served("portal/a", ALLOWANCE / 2)
        assert not of.ahead("portal/a")

    def test_a_key_weighs_as_much_with_users_as_without(self) -> None:
        of = self.of(portal=3.0)
        of.waits("other")
        for number in range(30):
            of.waits(f"portal/{number}")
        for number in range(30):
            of.served(f"portal/{number}", ALLOWANCE / 10)
        assert not of.ahead("portal/0")
        of.served("portal/0", 1.0)
        assert of.ahead("portal/1")

    def test_requests_that_name_no_user_are_one_users(self) -> None:
        of = self.of()
        of.waits("portal")
        of.waits("portal")
        of.waits("portal/a")
        of.served("portal", 2 * ALLOWANCE)
        assert of.ahead("portal")
        assert not of.ahead("portal/a")
        for tenant in ("portal", "portal", "portal/a"):
            of.waits_no_more(tenant)

    def test_the_one_that_makes_way_is_of_the_key_with_most_and_there_the_user_with_most(self) -> None:
        of = self.of(big=10.0)
        for tenant, count in (("portal/a", 3), ("portal/b", 4), ("other", 6), ("big", 40)):
            for _ in range(count):
                of.waits(tenant)
        assert of.most_waiting() == "portal/b"

    def test_columns_are_used_again(self) -> None:
        of = self.of()
        for number in range(1000):
            of.waits(f"key-{number}/user")
            of.waits_no_more(f"key-{number}/user")
        assert of.table.shape[1] < 100
