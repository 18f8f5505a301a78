"""`make test-outside`: what other people's packages warn of is theirs."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Beside the project's own filters, whose last one counts first."""
    config.addinivalue_line("filterwarnings", "default")
