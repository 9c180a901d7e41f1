import pytest

from .cohorts import Gate


@pytest.fixture
def gate():
    return Gate
