"""The right answer to an example: from `completion`, else from `answer`, else a refusal that says what is missing."""

import pytest
from rlrun.protocol.environment import DemonstrationRequest
from rlrun.service.errors import ProblemError
from rlrun_environment.worker.demonstrations import demonstrate
from rlrun_environment.worker.loaded import Loaded
from rlrun_environment.worker.loading import load

USER = {"role": "user", "content": "abc"}
ANSWER = {"role": "assistant", "content": "cba"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "add", "arguments": "{}"}]}
TOOL = {"role": "tool", "content": "3", "tool_call_id": "1"}


def of(*rows: dict, **request) -> dict:
    wanted = DemonstrationRequest.model_validate({"example_index": 0, **request})
    return demonstrate(Loaded(None, list(rows), None, plain=True), wanted).to_json_dict()


@pytest.mark.parametrize(
    ("row", "prompt", "completion"),
    [
        ({"prompt": [USER], "answer": "cba"}, [USER], [ANSWER]),
        ({"prompt": "abc", "answer": "cba"}, [USER], [ANSWER]),
        ({"question": "abc", "answer": "cba"}, [USER], [ANSWER]),
        ({"prompt": [USER], "answer": "no", "completion": "cba"}, [USER], [ANSWER]),
        ({"prompt": [USER], "answer": "no", "completion": [CALL, TOOL, ANSWER]}, [USER], [CALL, TOOL, ANSWER]),
        ({"prompt": [USER], "answer": "cba", "completion": []}, [USER], [ANSWER]),
        ({"prompt": [USER], "answer": 1, "completion": [{**ANSWER, "tool_calls": None}]}, [USER], [ANSWER]),
    ],
)
def test_prompt_and_answer(row, prompt, completion):
    assert of(row) == {"prompt": prompt, "completion": completion}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [USER], "info": 1}, ["neither a `completion`", "nor a string in `answer`", "info, prompt"]),
        ({"prompt": [USER], "answer": 7}, ["nor a string in `answer`", "answer, prompt"]),
        ({"prompt": [USER], "answer": ""}, ["nor a string in `answer`"]),
        ({"prompt": [USER], "completion": [USER]}, ["messages with one of the assistant"]),
        ({"prompt": [USER], "completion": [{"content": "x"}]}, ["neither a `completion`"]),
        ({"answer": "cba"}, ["no `prompt` (messages or a string)"]),
    ],
)
def test_what_is_missing_is_named(row, words):
    with pytest.raises(ProblemError) as refusal:
        of(row)
    assert (refusal.value.status, refusal.value.problem.reason) == (404, "DemonstrationsMissing")
    for each in words:
        assert each in refusal.value.problem.message


def test_an_example_that_does_not_exist():
    with pytest.raises(ProblemError, match="ExampleNotFound"):
        of({"prompt": "a", "answer": "b"}, example_index=1)


def test_verifiers_data_sets_with_system_prompt_and_both_splits(write_environment, tmp_path):
    code = """
    def load_environment():
        return vf.SingleTurnEnv(
            dataset=Dataset.from_list([{"question": "abc", "answer": "cba"}]), eval_dataset=rows("xyz"),
            system_prompt="Reverse it.",
        )
    """
    loaded = load(write_environment(code), tmp_path)
    system = {"role": "system", "content": "Reverse it."}
    train = demonstrate(loaded, DemonstrationRequest(example_index=0)).to_json_dict()
    assert train == {"prompt": [system, USER], "completion": [ANSWER]}
    held_out = demonstrate(loaded, DemonstrationRequest.model_validate({"example_index": 0, "split": "eval"}))
    assert held_out.completion == [{"role": "assistant", "content": "zyx"}]
