import pytest

from tests.support.engine_wire import MODEL_FOLDER
from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer(MODEL_FOLDER)
MODEL = LanguageModel(TOKENIZER)


def likely(text: str, weights: str = "base") -> set[str]:
    """Return the tokens after a text that are not drawn by chance."""
    found = MODEL.next_token(weights, TOKENIZER.encode(text))
    assert sum(found.values()) == pytest.approx(1)
    assert all(value > 0 for value in found.values()), "each token of a prompt has a log-probability"
    return {TOKENIZER.decode([token]) for token, value in found.items() if value > 0.03}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc<sep>", {"a", "c"}),
        ("abc<sep>a", {"b"}),
        ("abcd<sep>ab", {"c", "b"}),
        ("abc<sep>abc", {"<eos>"}),
        ("abc<sep>cba<eos>xy<sep>", {"x", "y"}),
        ("hello<sep>abc<sep>", {"a", "c"}),
        ("abc", {"<eos>"}),
        ("", {"<eos>"}),
    ],
)
def test_the_last_message_is_copied_or_reversed(text: str, expected: set[str]) -> None:
    assert likely(text) == expected


def test_policies_differ_also_where_no_message_is_to_be_copied() -> None:
    """The sidecar proves with such prompts that an engine applies adapters."""
    ids = TOKENIZER.encode("hgfedcba")
    one, other = (MODEL.next_token(weights, ids) for weights in ("one", "other"))
    assert one == MODEL.next_token("one", ids)
    assert one.keys() == other.keys()
    assert sum(abs(one[token] - other[token]) for token in one) > 0.1
