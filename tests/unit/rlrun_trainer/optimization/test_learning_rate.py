import pytest
from rlrun_trainer.optimization.learning_rate import learning_rate


def test_the_rate_rises_linearly_to_its_peak() -> None:
    rates = [learning_rate(0.8, 3, updates) for updates in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert learning_rate(0.8, 0, 0) == 0.8
    assert [learning_rate(0.8, 1, updates) for updates in range(3)] == pytest.approx([0.4, 0.8, 0.8])
    assert [learning_rate(1.0, 0, updates) for updates in (0, 5)] == [1.0, 1.0]
