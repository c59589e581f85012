"""Content of messages that an engine must not get."""

from typing import Any

import pytest
from rlrun.service.message_content import refused_content

FETCHED: list[Any] = [
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    {"type": "image_url", "image_url": "https://example.com/a.png"},
    {"image_url": {"url": "http://169.254.169.254/"}},
    {"type": "text", "text": "see", "image_url": "file:///etc/passwd"},
    {"type": "input_image", "image_url": "https://example.com/a.png"},
    {"type": "input_image", "input_image": {"image_url": "https://example.com/a.png"}},
    {"type": "input_image", "input_image": "https://example.com/a.png"},
    {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
    {"type": "video_url", "video_url": {"url": "HTTPS://example.com/a.mp4"}},
    {"type": "video_url", "video_url": "a.mp4"},
]
"""Parts that an engine would fetch, in the forms that vLLM accepts."""
INCLUDED: list[Any] = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    {"type": "image_url", "image_url": "data:image/png;base64,AA"},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    {"type": "image_embeds", "image_embeds": "AA"},
    {"type": "file", "file": {"file_id": "f"}},
]
"""Parts that are not text, and that are in the request themselves."""
TEXT: list[Any] = [
    {"type": "text", "text": "https://example.com/a.png"},
    {"text": "image_url"},
    {"type": "refusal", "refusal": "no"},
    "https://example.com/a.png",
]


def messages(part: Any) -> list[Any]:
    return [{"role": "user", "content": "https://example.com"}, {"role": "tool", "content": [{"text": "a"}, part]}]


@pytest.mark.parametrize("part", FETCHED)
def test_nothing_that_an_engine_would_fetch_is_accepted(part: Any) -> None:
    for media in (True, False):
        refused = refused_content(messages(part), media=media)
        assert refused is not None
        assert refused.startswith("messages[1].content[1]")


@pytest.mark.parametrize("part", INCLUDED)
def test_other_content_within_the_request_is_for_conversations_without_training(part: Any) -> None:
    assert refused_content(messages(part), media=True) is None
    assert refused_content(messages(part), media=False) is not None


@pytest.mark.parametrize("part", TEXT)
def test_text_is_accepted(part: Any) -> None:
    for media in (True, False):
        assert refused_content(messages(part), media=media) is None


@pytest.mark.parametrize("odd", [None, "text", 5, [None], [{}], [{"content": 5}], [["image_url"]], {"content": []}])
def test_messages_of_other_forms_are_left_to_the_engine(odd: Any) -> None:
    assert refused_content(odd, media=True) is None
    assert refused_content(odd, media=False) is None


def test_recorded_audio_is_not_text() -> None:
    recorded = [{"role": "assistant", "audio": {"id": "audio_1"}}]
    assert refused_content(recorded, media=False) == "messages[0].audio is set"
    assert refused_content(recorded, media=True) is None
