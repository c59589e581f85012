from rlrun_operator.resources.access.run_tokens import environment_token, run_token, token_variables

KEY = b"k" * 32


def test_tokens_differ_by_run_by_key_and_by_purpose() -> None:
    found = [run_token(KEY, "a"), run_token(KEY, "b"), run_token(b"n" * 32, "a"), environment_token(KEY, "a")]
    assert len(set(found)) == len(found)
    assert run_token(KEY, "a") == run_token(KEY, "a")
    assert KEY.hex() not in "".join(found)


def test_the_platforms_processes_have_both() -> None:
    assert token_variables(KEY, "a") == {
        "RLRUN_TOKEN": run_token(KEY, "a"),
        "RLRUN_ENVIRONMENT_TOKEN": environment_token(KEY, "a"),
    }
