"""The project's prose keeps the mechanical rules of style, and planted violations are found."""

import pytest

from tests.support.style import NOUN_OPENINGS, OPENINGS, compare, count_hits, hits_of_file, lower, read_allowed


def rules(path: str, text: str) -> list[tuple[int, str, str]]:
    return [(hit.line, hit.rule, hit.words) for hit in hits_of_file(path, text)]


def test_no_file_has_more_hits_or_fewer_than_the_allow_list_says() -> None:
    assert compare(count_hits(), read_allowed()) == []


@pytest.mark.parametrize("word", OPENINGS)
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""{} the module holds."""\n', 1),
        ('class Door:\n    """{} is open."""\n', 2),
        ('def close() -> None:\n    """{} many doors."""\n', 2),
        ('class Door:\n    width: int\n    """{}\n    meters."""\n', 3),
    ],
)
def test_docstring_that_begins_with_a_banned_word_is_found(text: str, line: int, word: str) -> None:
    assert rules("door.py", text.format(word)) == [(line, "first word", word)]


@pytest.mark.parametrize("word", NOUN_OPENINGS)
@pytest.mark.parametrize(
    ("decorator", "hits"),
    [("", 1), ("@override", 1), ("@property", 0), ("@cached_property", 0), ("@functools.cached_property", 0)],
)
def test_docstring_of_a_function_begins_with_a_verb_and_that_of_a_property_need_not(
    decorator: str, hits: int, word: str
) -> None:
    method = f'    {decorator}\n    def width(self) -> int:\n        """{word} width."""\n'
    assert rules("door.py", f'class Door:\n    """{word} door."""\n{method}') == [(5, "first word", word)] * hits


@pytest.mark.parametrize("text", ["Whatsoever.", "In-memory bucket.", "Forward the request.", "`For` is a keyword."])
def test_docstring_that_begins_with_another_word_is_accepted(text: str) -> None:
    assert rules("door.py", f'"""{text}"""\n') == []


@pytest.mark.parametrize(
    "words",
    ["whoever", "Nobody", "somebody", "everybody", "whatever", "any more", "for ever", "be it", "is no finite"],
)
@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("door.py", '"""Open the door.\n\n    It {} door.\n    """\n', 3),
        ("door.py", "OPEN = 1\nCLOSED = 2  # it {} door\n", 2),
        ("docs/door.md", "# Doors\n\nIt {} door.\n", 3),
        ("charts/rlrun/values.yaml", "door: 1\n# It {} door.\n", 2),
        ("charts/rlrun/templates/NOTES.txt", "It {} door.\n", 1),
        ("Makefile", "open: ## It {} door\n", 1),
    ],
)
def test_banned_words_are_found(path: str, text: str, line: int, words: str) -> None:
    assert rules(path, text.format(words)) == [(line, "banned words", words)]


@pytest.mark.parametrize(
    "text", ["# a door that is not open any\n# more\n", '"""Doors that are not open any\nmore."""\n']
)
def test_banned_words_are_found_across_a_line_break(text: str) -> None:
    assert rules("door.py", text) == [(1, "banned words", "any more")]


@pytest.mark.parametrize("words", ["Take notice", "that of which", "as they are then", "no longer", "given up"])
def test_worn_phrases_are_found_in_docstrings_and_comments_only(words: str) -> None:
    assert rules("door.py", f'"""Doors, {words}."""\n') == [(1, "worn phrase", words)]
    assert rules("door.py", f"# doors, {words}.\n") == [(1, "worn phrase", words)]
    assert rules("docs/door.md", f"Doors, {words}.\n") == []


@pytest.mark.parametrize("words", ["is no longer open", "is no more than a door", "forever", "maybe it is"])
def test_similar_words_are_accepted(words: str) -> None:
    assert rules("docs/door.md", f"The door {words}.\n") == []


def test_the_phrase_there_is_no_is_accepted() -> None:
    assert rules("docs/door.md", "There is no door.\n") == []


@pytest.mark.parametrize("text", ["```\nnobody\n```\n", "The command `nobody` is\n`any\nmore`.\n"])
def test_code_in_documentation_is_not_prose(text: str) -> None:
    assert rules("docs/door.md", text) == []


def test_string_literals_are_searched_only_on_demand() -> None:
    text = 'raise ValueError("nobody is there")\n'
    assert hits_of_file("door.py", text) == []
    assert [hit.words for hit in hits_of_file("door.py", text, with_messages=True)] == ["nobody"]


@pytest.mark.parametrize("heading", ["What a door is", "Where doors are", "Is it open?"])
def test_heading_that_is_a_question_is_found(heading: str) -> None:
    assert rules("docs/door.md", f"# Doors\n\n## {heading}\n") == [(3, "heading", heading)]


def test_more_hits_and_fewer_hits_than_allowed_are_both_reported() -> None:
    problems = compare({"more": 2, "new": 1, "same": 1}, {"more": 1, "fewer": 3, "same": 1})
    assert [problem.split(":")[0] for problem in problems] == ["fewer", "more", "new"]
    assert "--lower" in problems[0]


def test_lowering_raises_no_number_and_adds_no_file() -> None:
    assert lower({"more": 2, "new": 1, "fewer": 1}, {"more": 1, "fewer": 3, "clean": 1}) == {"more": 1, "fewer": 1}
