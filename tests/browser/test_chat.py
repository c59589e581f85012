"""Questions to a deployed adapter and its base model."""

import json
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client
from playwright.sync_api import Route, expect
from rlrun.constants import GROUP

import tests.pictures.__main__ as pictures
from tests.browser.conftest import LEARNING, Server
from tests.support.browser import WatchedPage
from tests.support.rest_api import SPEC
from tests.support.seaweedfs import S3Server
from tests.support.seeded_runs import VERSION, SeededRuns


@pytest.fixture
def adapter(api: client.ApiClient, server: Server, s3_server: S3Server) -> Iterator[str]:
    """An adapter that is deployed."""
    name = f"asked-{uuid.uuid4().hex[:6]}"
    layout = server.layouts[LEARNING]
    SeededRuns(api, s3_server).artifact(server.namespace, "RLAdapter", name, LEARNING, layout, 60, deployed=True)
    objects, place = client.CustomObjectsApi(api), (GROUP, VERSION, server.namespace, "rladapters", name)
    objects.patch_namespaced_custom_object_status(*place, {"status": {"deploymentState": "Deployed"}})
    yield name
    objects.delete_namespaced_custom_object(*place)


def answer(route: Route) -> None:
    """Answer as the server does: each model in two pieces, with its name."""
    model = route.request.post_data_json["model"]
    events = [
        {"choices": [{"delta": {"content": "answer of "}}]},
        {"choices": [{"delta": {"content": model}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 7}},
    ]
    body = "".join(f"data: {text}\n\n" for text in [*map(json.dumps, events), "[DONE]"])
    route.fulfill(status=200, content_type="text/event-stream", body=body)


@pytest.mark.smoke
def test_an_adapter_and_its_base_model_are_asked_the_same(adapter: str, editor: WatchedPage, server: Server) -> None:
    page = editor.page
    page.route("**/v1/chat/completions", answer)
    editor.open(f"/chat?ns={server.namespace}&adapter={adapter}&base=1")
    pictures.ask(editor)
    answers = page.locator(".message.assistant")
    expect(answers.nth(0)).to_contain_text(f"answer of {server.namespace}/{adapter}")
    expect(answers.nth(1)).to_contain_text(f"answer of {server.namespace}/{SPEC['model']}")
    expect(answers.nth(0)).to_contain_text("7 tokens, stop")
    editor.check_accessibility()


def test_a_pool_that_is_not_ready_is_asked_again(
    adapter: str, editor: WatchedPage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "BETWEEN_QUESTIONS_MS", 10)
    asked: list[Route] = []

    def refuse_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 2:
            answer(route)
        else:
            route.fulfill(status=503, json={"error": {"message": "Not yet.", "code": "pool_not_ready"}})

    editor.page.route("**/v1/chat/completions", refuse_first)
    editor.open(f"/chat?ns={server.namespace}&adapter={adapter}&base=1")
    pictures.ask(editor)
    assert len(asked) == 4
    expect(editor.page.locator(".message.assistant")).to_have_count(2)
    expect(editor.page.locator(".problem")).to_have_count(0)


def test_a_refused_question_says_why(adapter: str, editor: WatchedPage, server: Server) -> None:
    page = editor.page
    error = {"error": {"message": "The adapter is not loaded yet. Ask again in a minute.", "code": "NotReady"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json=error))
    editor.expect(503, "/v1/chat/completions")
    editor.open(f"/chat?ns={server.namespace}&adapter={adapter}")
    page.get_by_label("Message", exact=True).fill("abc")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("Ask again in a minute")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    editor.check_accessibility()
