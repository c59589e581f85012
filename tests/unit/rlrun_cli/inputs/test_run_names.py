import pytest
from rlrun_cli.inputs.run_names import slug


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Reverse Text!", "reverse-text"),
        ("3 letters", "run-3-letters"),
        ("ÄÖ", "run"),
        ("x" * 99, "x" * 34),
        ("a-", "a"),
    ],
)
def test_slug(text: str, wanted: str) -> None:
    assert slug(text) == wanted
