from rlrun_operator.runtime.metrics import GpuSecondsCollector


def test_gpu_seconds_grow_with_the_time_between_scrapes_and_stay_when_a_run_has_ended() -> None:
    now, held = 100.0, [("run", "a/m", 4), ("run", "a/m", 2), ("serving", "a/m", 1)]
    collector = GpuSecondsCollector(lambda: held, lambda: now)

    def seconds() -> dict[str, float]:
        (family,) = collector.collect()
        return {sample.labels["kind"]: sample.value for sample in family.samples if sample.name.endswith("_total")}

    assert seconds() == {}, "the time before the first scrape may be that of a standby"
    now = 110.0
    assert seconds() == {"run": 60.0, "serving": 10.0}
    held = [("serving", "a/m", 1)]
    assert seconds() == {"run": 60.0, "serving": 10.0}
    now = 115.0
    assert seconds() == {"run": 60.0, "serving": 15.0}
