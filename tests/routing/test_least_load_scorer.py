"""The least-load rule."""

import pytest

from headway.config import Role
from headway.routing.shared_rules import counts_prompt_tokens, least_loaded


def test_prompt_tokens_count_on_prefill_replicas_alone() -> None:
    assert [counts_prompt_tokens(role) for role in (Role.PREFILL, Role.DECODE, Role.MIXED)] == [
        True,
        False,
        False,
    ]


def test_the_least_is_chosen_and_of_equals_the_first() -> None:
    assert least_loaded([3.0, 1.0, 2.0, 1.0]) == 1
    assert least_loaded(iter([0, 0])) == 0


def test_there_is_no_least_of_nothing() -> None:
    with pytest.raises(ValueError, match="empty"):
        least_loaded([])
