"""Markers of these tests."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Tests that need a CUDA device carry the marker cuda."""
    config.addinivalue_line("markers", "cuda: needs a CUDA device; skipped where there is none")
