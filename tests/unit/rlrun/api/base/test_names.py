"""Names of packages that are most like a missing one."""

from rlrun.api.base.names import MOST_COMPARED, similar_packages


def test_the_names_most_like_a_missing_one_are_returned_in_any_spelling() -> None:
    assert similar_packages("Reverse_Txt", ["words", "reverse-text", "gsm8k"]) == ["reverse-text"]
    assert similar_packages("team/Reverse_Txt", ["team/words", "team/reverse-text"]) == ["team/reverse-text"]


def test_so_many_names_are_compared_and_no_more() -> None:
    others = (f"{index}" for index in range(MOST_COMPARED))
    assert similar_packages("reverse-text", [*others, "reverse-text"]) == []
