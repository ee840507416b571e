"""`python -m benchmarks bursts`: rules that are switched off, and loads."""

import numpy as np
import pytest

from benchmarks.bursts_loads import BACK_S, INPUT_TOKENS, LOADS, STEP_S
from benchmarks.bursts_without import RULES, policy_without


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_switched_off_for_a_while(rule: str):
    owner, name, replacement = RULES[rule]
    whole = vars(owner)[name]
    with policy_without(rule):
        assert vars(owner)[name] is replacement
    assert vars(owner)[name] is whole


def test_lengths_are_others_between_the_steps_alone():
    load = LOADS["lengths × 2 and back"].requests(low_rps=2.0, seed=1)
    within = (load.arrival_s >= STEP_S) & (load.arrival_s < BACK_S)
    assert np.mean(load.input_tokens[within]) == pytest.approx(2.0 * INPUT_TOKENS, rel=0.05)
    assert np.mean(load.input_tokens[~within]) == pytest.approx(INPUT_TOKENS, rel=0.05)
