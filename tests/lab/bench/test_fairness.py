"""What wrong runs of another tenant add to the 99th percentile."""

from bench.fairness import Probe, result_of


def probes(repeat: int, alone: float, beside: float, worst: float) -> list[Probe]:
    found = [Probe(repeat, True, beside) for _ in range(98)] + [Probe(repeat, True, worst) for _ in range(2)]
    return [*found, *(Probe(repeat, False, alone) for _ in range(100))]


def test_p99_of_each_repetition_is_compared_with_its_own_baseline() -> None:
    found = result_of([*probes(0, 0.5, 0.6, 0.9), *probes(1, 0.1, 0.2, 0.3), *probes(2, 0.2, 0.3, 3.0)], 1000, [0.1])
    assert [round(value, 2) for value in found.repetitions] == [0.4, 0.2, 2.8]
    assert found.ratio is not None
    assert round(found.ratio, 2) == 0.4
    assert found.aim is not None
    assert found.aim.met_by(found.ratio)
    assert not found.aim.met_by(found.repetitions[2])
    assert len(found.samples) == 600


def test_a_delay_of_a_few_probes_is_seen() -> None:
    [added] = result_of(probes(0, 0.1, 0.1, 5.0), 1000).repetitions
    assert added > 4
