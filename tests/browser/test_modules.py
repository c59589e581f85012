"""Pure functions of the page's modules, in the browser that runs them."""

import json
from typing import Any

import pytest

from tests.support.browser import WatchedPage


def call(watched: WatchedPage, module: str, function: str, *arguments: Any) -> Any:
    """Return what a function of a module returns. Without a number: the text `NaN`."""
    script = """async ([module, name, text]) => {
        const found = (await import(`/assets/test/${module}`))[name];
        return JSON.stringify(found(...JSON.parse(text))) ?? null;
    }"""
    answer = watched.page.evaluate(script, [module, function, json.dumps(arguments)])
    return None if answer is None else json.loads(answer)


@pytest.fixture
def page(watched: WatchedPage) -> WatchedPage:
    """The page before the login, which has all modules."""
    watched.expect(401, "/rlrun/v1/")
    watched.open("/login")
    return watched


def test_numbers_are_plain(page: WatchedPage) -> None:
    cases: list[tuple[str, list[Any], str]] = [
        ("number", [0.70631], "0.7063"),
        ("number", [5210.4], "5,210"),
        ("number", [0.00075123], "7.51e-4"),
        ("number", [1e-5], "1e-5"),
        ("number", [-0.5], "\u22120.5"),
        ("number", [0], "0"),
        ("number", [None], "\u2013"),
        ("compact", [5210], "5.21k"),
        ("percent", [0.0042], "0.42 %"),
        ("percent", [0.3], "30 %"),
        ("size", [12_345_678], "11.8 MiB"),
        ("duration", [7180], "2 h"),
        ("duration", [7.3], "7.3 s"),
        ("duration", [3599], "1 h"),
        ("duration", [90_000], "1 d 1 h"),
        ("steps", [{"step": 3, "maxSteps": 10}], "3/10"),
        ("steps", [{"step": 3, "maxSteps": 0}], "3"),
        ("words", ["RewardFlatAtZero"], "Reward flat at zero"),
        ("userName", ["system:serviceaccount:team:rlrun-user"], "team/rlrun-user"),
        ("userName", ["ann@example.org"], "ann@example.org"),
        ("plural", [1, "run matches", "runs match"], "1 run matches"),
    ]
    for name, arguments, expected in cases:
        assert call(page, "lib/format.js", name, *arguments) == expected, (name, arguments)


@pytest.mark.parametrize(
    ("reason", "title"),
    [("Starting", "The run is starting"), ("WaitingForTrainer", "The run is starting: Waiting for trainer")],
)
def test_a_run_that_starts_is_told_so_once(page: WatchedPage, reason: str, title: str) -> None:
    run = {"summary": {"phase": "Pending", "reason": reason, "message": ""}, "status": {}}
    (notice,) = call(page, "components/diagnosis.js", "noticesOf", run)
    assert notice["title"] == title


def test_the_newest_is_first_in_the_time_line_also_within_a_second(page: WatchedPage) -> None:
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:05:00Z"}
    run = {"summary": {"createdAt": times["startTime"], "phase": "Completed", "message": ""}, "status": times}
    events = [{"time": "2026-01-01T00:01:00Z", "type": "Normal", "reason": "Running", "message": "", "count": 1}]
    entries = call(page, "pages/run_events.js", "timeline", run, events)
    assert [entry["title"] for entry in entries] == ["Completed", "Running", "Started", "Created"]


def test_smoothing_begins_with_the_first_value(page: WatchedPage) -> None:
    found = call(page, "lib/chart_data.js", "smoothed", [1, None, 1, 3], 0.5)
    assert found[:3] == [1, None, 1]
    assert 1 < found[3] < 3


def test_the_band_is_two_standard_errors_wide(page: WatchedPage) -> None:
    script = """async () => {
        const { bandOf } = await import("/assets/test/lib/chart_data.js");
        return bandOf([10, 20, 30], [0.5, 0.6, null], new Map([[5, 0.1], [10, 0.3]]));
    }"""
    found = page.page.evaluate(script)
    assert found["low"] == pytest.approx([0.5 - 1.96 * 0.2, None, None])
    assert found["high"] == pytest.approx([0.5 + 1.96 * 0.2, None, None])


def test_lines_of_patterns(page: WatchedPage) -> None:
    script = """async () => {
        const { linesOf } = await import("/assets/test/lib/chart_data.js");
        const names = ["reward/mean", "reward/a/b/mean", "reward/a.*/mean", "reward/mean/max", "eval/x/avg@4"];
        const columns = new Map(names.map((name) => [name, [1]]));
        const series = [{metric: "reward/*/mean", label: "*"}, {metric: "eval/*/avg@*", label: "eval *"}];
        return linesOf({series}, columns).map((line) => line.label);
    }"""
    assert page.page.evaluate(script) == ["a/b", "a.*", "eval x @4"]


@pytest.mark.parametrize(
    ("run", "titles"),
    [
        ({"summary": {"phase": "Running"}, "status": {}}, []),
        ({"summary": {"phase": "Failed", "reason": "TrainerOutOfMemory", "message": "m"}, "status": {}}, ["failed"]),
        (
            {"summary": {"phase": "Queued", "reason": "WaitingForCapacity"}, "status": {"queue": {"runsAhead": 2}}},
            ["waits"],
        ),
        (
            {
                "summary": {"phase": "Running"},
                "status": {
                    "conditions": [
                        {"type": "TrainingHealthy", "status": "False", "reason": "RewardFlatAtZero"},
                        {"type": "Warnings", "status": "False", "reason": "NoWarnings"},
                        {"type": "TrainingHealthy", "status": "False", "reason": "TrainerBound"},
                    ]
                },
            },
            ["TrainingHealthy"],
        ),
    ],
)
def test_the_diagnosis(page: WatchedPage, run: Any, titles: list[str]) -> None:
    found = call(page, "components/diagnosis.js", "noticesOf", run)
    assert [notice["key"] for notice in found] == titles


def test_a_continued_run_leaves_out_what_belongs_to_the_old_one(page: WatchedPage) -> None:
    spec = {"model": "m", "name": "old", "stop": True, "suspend": False, "checkpointId": "a", "maxSteps": 5}
    wanted = {"checkpoint": "b", "name": " new ", "steps": 9, "rate": 0}
    found = call(page, "components/continue_dialog.js", "continued", spec, wanted)
    assert found == {"model": "m", "name": "new", "checkpointId": "b", "maxSteps": 9}


def test_answers_that_fail_are_not_kept(page: WatchedPage) -> None:
    script = """async () => {
        const { answerCache } = await import("/assets/test/lib/cache.js");
        const cached = answerCache(2);
        let calls = 0;
        const load = () => (calls++ ? Promise.resolve(calls) : Promise.reject(new Error("no")));
        await cached("a", load).catch(() => {});
        await new Promise((resolve) => setTimeout(resolve));
        const answers = [await cached("a", load), await cached("a", load)];
        await cached("b", load); await cached("c", load);
        return [...answers, await cached("a", load)];
    }"""
    assert page.page.evaluate(script) == [2, 2, 5]
