"""What every test shares."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Toy models on a shared machine: a second thread costs more than it gives, and spins."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
