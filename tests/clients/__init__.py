import pytest

pytest.register_assert_rewrite("tests.clients.measured", "tests.clients.tools")
