"""A real Chromium for pages, where there is one."""

from tests.live.conftest import browser

__all__ = ["browser"]
