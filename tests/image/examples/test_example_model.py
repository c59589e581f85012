"""The example model: its tokenizer, its determinism, and that stock classes load what it saves."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES / "reverse_text_model"), str(EXAMPLES)]

import evaluate_adapter  # noqa: E402
import make_model  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer, model = make_model.build_tokenizer(), make_model.build_model(0)
    make_model.train(model, tokenizer, steps=3, seed=0)
    make_model.save(model, tokenizer, folder)
    return folder


def test_the_chat_template_gives_text_and_separator(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "ab z"}], tokenize=True, return_dict=False)
    letters = {c: 3 + i for i, c in enumerate(make_model.ALPHABET)}
    assert list(ids) == [letters["a"], letters["b"], letters[" "], letters["z"], make_model.SEP_ID]
    chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]
    ids = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
    assert list(ids)[-3:] == [letters["b"], letters["a"], make_model.EOS_ID]


def test_text_survives_the_tokenizer_and_strange_characters_become_spaces(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "mira tolu kef"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    assert tokenizer.decode(tokenizer("A-b\n7", add_special_tokens=False).input_ids) == "a b  "
    assert tokenizer.eos_token_id == make_model.EOS_ID


def test_the_saved_model_ends_at_its_end_token(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.generation_config.eos_token_id == make_model.EOS_ID
    assert model.config.tie_word_embeddings
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(450_000, rel=0.05)


def test_the_same_seed_makes_the_same_weights(folder):
    torch.set_num_threads(1)
    weights = []
    for _ in range(2):
        model = make_model.build_model(7)
        make_model.train(model, make_model.build_tokenizer(), steps=2, seed=7)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


def test_training_batches_hold_no_held_out_text():
    tokenizer = make_model.build_tokenizer()
    ids, answer_at = next(make_model.batches(tokenizer, seed=0))
    prompts = [tokenizer.decode(row[: answer_at - 1]) for row in ids]
    assert {make_model.split_of(p) for p in prompts} == {"train"}
    answers = [tokenizer.decode(row[answer_at:-1]) for row in ids]
    copied = sum(a == p for a, p in zip(answers, prompts, strict=True)) / len(prompts)
    assert all(a in (p, p[::-1]) for a, p in zip(answers, prompts, strict=True))
    assert 0.4 < copied < 0.8


def test_answers_come_back_in_the_order_of_the_texts(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = ["abcde", "ab", "edcba", "ba"]
    together = evaluate_adapter.answers(model, tokenizer, texts, sample=False)
    alone = [evaluate_adapter.answers(model, tokenizer, [text], sample=False)[0] for text in texts]
    assert together == alone
