"""Numbers set inside the text of a Serve config."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from actors.connectors.ray_service import with_counts
from tests.kubernetes.manifests import SERVE_CONFIG

SHARED = """
pool: &pool {num_replicas: 2, max_ongoing_requests: 8}
applications:
  - name: headway
    deployments:
      - {name: Prefill, <<: *pool}
      - {name: Decode, num_replicas: &n 3}
      - {name: Gateway, num_replicas: *n}
"""


def counts_in(text: str, application: str) -> dict[str, int]:
    (found,) = [
        item for item in yaml.safe_load(text)["applications"] if item.get("name", "default") == application
    ]
    return {item["name"]: item["num_replicas"] for item in found["deployments"]}


@given(prefill=st.integers(0, 5000), decode=st.integers(0, 5000))
def test_only_the_named_numbers_change(prefill: int, decode: int) -> None:
    text = with_counts(SERVE_CONFIG, "headway", {"Prefill": prefill, "Decode": decode})

    assert counts_in(text, "headway") == {"Gateway": 1, "Prefill": prefill, "Decode": decode}
    assert counts_in(text, "other") == {"Prefill": 7}
    assert [line.split("#")[1:] for line in text.splitlines()] == [
        line.split("#")[1:] for line in SERVE_CONFIG.splitlines()
    ]
    assert with_counts(text, "headway", {"Prefill": 2, "Decode": 3}) == SERVE_CONFIG


def test_a_missing_number_is_written_in_block_and_flow_style() -> None:
    text = (
        "applications:\n- deployments:\n  - name: Prefill  # first\n    user_config: {}\n  - {name: Decode}\n"
    )

    edited = with_counts(text, "default", {"Prefill": 4, "Decode": 5})

    assert counts_in(edited, "default") == {"Prefill": 4, "Decode": 5}
    assert "# first" in edited


def test_anchors_are_not_changed_for_others() -> None:
    text = with_counts(SHARED, "headway", {"Prefill": 4, "Decode": 5})

    assert counts_in(text, "headway") == {"Prefill": 4, "Decode": 5, "Gateway": 3}
    assert yaml.safe_load(text)["pool"] == {"num_replicas": 2, "max_ongoing_requests": 8}
    assert yaml.safe_load(text)["applications"][0]["deployments"][0]["max_ongoing_requests"] == 8


def test_text_beyond_ascii_does_not_shift_the_edit() -> None:
    text = "# grüße 🚀\n" + SERVE_CONFIG

    assert with_counts(text, "headway", {"Decode": 11}) == text.replace(
        "num_replicas: 3,", "num_replicas: 11,"
    )
