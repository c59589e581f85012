"""Results of the trainer's benchmark and their targets."""

from bench import trainer
from bench.report import at_least


def test_trainer_is_compared_with_both_loops_repetition_by_repetition() -> None:
    rates = {"packed": (20.0, 40.0, 60.0), "plain": (10.0, 10.0, 10.0), "sorted": (10.0, 40.0, 40.0)}
    steps = [
        {"way": way, "repeat": repeat, "tokens_per_second": rate, "padding": 0.1}
        for way, found in rates.items()
        for repeat, rate in enumerate(found)
    ]
    losses = dict.fromkeys(rates, 0.14)
    packed, by_length = trainer.cpu_results("tiny", "title", 100, steps, losses, [0.1, 0.1, 1.9], {})
    assert list(packed.repetitions) == [2.0, 4.0, 6.0]
    assert (by_length.name, by_length.ratio, list(by_length.repetitions)) == (
        "tiny, packed, sorted loop",
        1.5,
        [2.0, 1.0, 1.5],
    )
    assert all(list(result.cores_busy) == [0.1, 0.1, 1.9] for result in (packed, by_length))


def test_only_the_published_loads_have_targets() -> None:
    found = {load.name: trainer.gpu_results(load, {"error": "no GPU"}) for load in trainer.LOADS}
    mfu, memory = found["65k"]
    assert (mfu.aim, memory.aim) == (at_least(25.2), trainer.at_most(11.5))
    assert mfu.notes == ["no GPU"]
    assert [r.aim for r in found["65k, 4 slots"]] == [None, None]
    assert "4 slots in turn" in found["65k, 4 slots"][0].what
    assert len({r.name for results in found.values() for r in results}) == 2 * len(trainer.LOADS)


def test_figures_of_a_load_are_those_of_its_steps() -> None:
    steps = [{"mfu": 20.0, "peak_gib": 3.0}, {"mfu": 30.0, "peak_gib": 4.0}]
    found = {"mfu": 25.0, "gib": 4.0, "samples": steps, "notes": ["100 tokens/s"]}
    mfu, memory = trainer.gpu_results(trainer.LOADS[0], found)
    assert (mfu.ratio, list(mfu.repetitions)) == (25.0, [20.0, 30.0])
    assert (memory.ratio, list(memory.repetitions)) == (4.0, [3.0, 4.0])
