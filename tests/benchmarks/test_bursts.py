"""`python -m benchmarks bursts`: rules that are switched off."""

import pytest

from benchmarks.bursts_without import RULES, policy_without


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_switched_off_for_a_while(rule: str):
    owner, name, replacement = RULES[rule]
    whole = vars(owner)[name]
    with policy_without(rule):
        assert vars(owner)[name] is replacement
    assert vars(owner)[name] is whole
