"""Login, logout, and what other pages can do with the session."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from kubernetes import client
from playwright.sync_api import Browser, expect

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_server.test_users import RBAC, Accounts, chart_objects
from tests.browser.conftest import LEARNING, Server, make_roles
from tests.support.browser import WatchedPage, watched_page
from tests.support.oidc_issuer_stub import CLIENT, SECRET, OidcIssuerStub, oidc_issuer_stub
from tests.support.ports import claimed_ports
from tests.support.rest_api import SPEC
from tests.support.seaweedfs import S3Server
from tests.support.server_process import server_process

COOKIE = "rlrun-session"


@pytest.mark.smoke
def test_a_user_logs_in_and_out(watched: WatchedPage, server: Server) -> None:
    watched.expect(401, "/rlrun/v1/")
    watched.open("/runs")
    expect(watched.page.get_by_role("heading", name="Log in")).to_be_visible()
    watched.check_accessibility()
    watched.log_in(server.tokens["viewer"])
    expect(watched.page.get_by_role("link", name=LEARNING)).to_be_visible()
    (cookie,) = watched.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert server.tokens["viewer"] not in cookie["value"]
    assert watched.page.evaluate("document.cookie") == ""
    watched.page.reload()
    expect(watched.page.get_by_role("link", name=LEARNING)).to_be_visible()
    watched.expect(401, "/rlrun/v1/")
    watched.page.get_by_role("link", name="Log out").click()
    expect(watched.page.get_by_role("heading", name="Log in")).to_be_visible()
    assert watched.page.context.cookies() == []


def test_a_wrong_token_says_so(watched: WatchedPage) -> None:
    watched.expect(401, "/rlrun/v1/")
    watched.open("/login")
    watched.page.get_by_label("Kubernetes token or API key").fill("not-a-token")
    watched.page.get_by_role("button", name="Log in").click()
    expect(watched.page.get_by_text("does not accept the token")).to_be_visible()
    watched.check_accessibility()


def test_a_code_of_the_command_line_logs_in_once(browser: Browser, server: Server) -> None:
    headers = {"Authorization": f"Bearer {server.tokens['viewer']}"}
    code = httpx.post(f"{server.url}/rlrun/v1/session:code", headers=headers).json()["code"]
    with watched_page(browser, server.url) as first:
        first.page.goto(f"{server.url}/#login={code}")
        expect(first.page.get_by_role("link", name=LEARNING)).to_be_visible()
        assert code not in first.page.url
    with watched_page(browser, server.url) as second:
        second.expect(401, "/rlrun/v1/")
        second.page.goto(f"{server.url}/#login={code}")
        expect(second.page.get_by_text("login code is invalid, was already used")).to_be_visible()


@pytest.fixture
def issuer() -> Iterator[OidcIssuerStub]:
    with oidc_issuer_stub() as stub:
        yield stub


@pytest.fixture
def at_issuer(
    browser: Browser,
    server: Server,
    issuer: OidcIssuerStub,
    api: client.ApiClient,
    control_plane: ControlPlane,
    s3_server: S3Server,
    tmp_path: Path,
) -> Iterator[WatchedPage]:
    """A page of a server with an issuer and the chart's rights. One group of the issuer may edit the namespace."""
    name, rbac = f"at-issuer-{uuid.uuid4().hex[:8]}", client.RbacAuthorizationV1Api(api)
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": make_roles(api)["editor"]}
    group = {"apiGroup": RBAC, "kind": "Group", "name": "ml-team"}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [group]}
    rbac.create_namespaced_role_binding(server.namespace, binding)
    values = [f"server.oidc.{value}" for value in ("issuer=https://x", "clientId=x", "impersonate=true")]
    objects = chart_objects(server.namespace, "server.yaml", "users.serverUrl=https://x", *values)
    rules = [rule for found in objects if found["kind"] == "ClusterRole" for rule in found["rules"]]
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    account = {"kind": "ServiceAccount", "name": name, "namespace": server.namespace}
    own = {"metadata": {"name": name}, "roleRef": {**role, "name": name}, "subjects": [account]}
    rbac.create_cluster_role_binding(own)
    token = Accounts(api).make(server.namespace, name)
    secret = tmp_path / "clientSecret"
    secret.write_text(SECRET)
    with claimed_ports(1) as (port,):
        oidc = {"issuer": issuer.url, "clientId": CLIENT, "redirectUrl": f"http://127.0.0.1:{port}/"}
        oidc |= {"impersonate": True, "usernamePrefix": "oidc:"}
        settings = {"port": str(port), "oidc": json.dumps(oidc), "oidc_secret": str(secret)}
        with (
            server_process(tmp_path / "server", control_plane.kubeconfig, s3_server, token, **settings) as url,
            watched_page(browser, url) as found,
        ):
            yield found
            asked = f"another host was asked: {issuer.url}/"
            found.problems = [text for text in found.problems if not text.startswith(asked)]


def test_a_user_logs_in_at_the_issuer_with_the_rights_of_a_group(
    at_issuer: WatchedPage, issuer: OidcIssuerStub, server: Server, api: client.ApiClient
) -> None:
    issuer.claims = {"groups": ["ml-team"]}
    page = at_issuer.page
    at_issuer.expect(401, "/rlrun/v1/")
    at_issuer.open(server.view(LEARNING))
    expect(page.get_by_role("button", name="Log in with single sign-on")).to_be_visible()
    at_issuer.check_accessibility()
    page.get_by_role("button", name="Log in with single sign-on").click()
    expect(page.get_by_role("heading", name=LEARNING)).to_be_visible()
    assert page.url == f"{at_issuer.url}/#{server.view(LEARNING)}", "neither code nor state stay in the address"
    (cookie,) = page.context.cookies(at_issuer.url)
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    send = """async ([method, path, body]) => {
        const headers = {"X-Rlrun": "1", "Content-Type": "application/json"};
        const answer = await fetch(path, {method, headers, body: body && JSON.stringify(body)});
        return [answer.status, method === "GET" || answer.status >= 400 ? await answer.json() : null];
    }"""
    assert page.evaluate(send, ["GET", "/rlrun/v1/whoami", None])[1]["name"] == "oidc:ann"
    runs = f"/rlrun/v1/namespaces/{server.namespace}/runs"
    run = {"metadata": {"name": "by-group"}, "spec": SPEC}
    assert page.evaluate(send, ["POST", runs, run]) == [201, None], "the API server knows the user and the group"
    custom = client.CustomObjectsApi(api)
    custom.delete_namespaced_custom_object("rlrun.dev", "v1alpha1", server.namespace, "rlruns", "by-group")
    at_issuer.expect(404, "/namespaces/default/")
    assert page.evaluate(send, ["POST", runs.replace(server.namespace, "default"), run])[0] == 404


def test_a_group_of_kubernetes_itself_is_refused(at_issuer: WatchedPage, issuer: OidcIssuerStub) -> None:
    issuer.claims = {"groups": ["system:masters"]}
    at_issuer.expect(401, "/rlrun/v1/")
    at_issuer.expect(403, "/rlrun/v1/session")
    at_issuer.open("/login")
    at_issuer.page.get_by_role("button", name="Log in with single sign-on").click()
    expect(at_issuer.page.get_by_text("names that begin with system:")).to_be_visible()
    assert [cookie["name"] for cookie in at_issuer.page.context.cookies(at_issuer.url)] == ["rlrun-login"]
    issuer.error = "access_denied"
    at_issuer.page.get_by_role("button", name="Log in with single sign-on").click()
    expect(at_issuer.page.get_by_text("It answered access_denied")).to_be_visible()


def test_a_login_that_began_elsewhere_does_not_end_here(at_issuer: WatchedPage) -> None:
    at_issuer.expect(401, "/rlrun/v1/")
    at_issuer.expect(403, "/rlrun/v1/session")
    at_issuer.page.goto(f"{at_issuer.url}/?code=stolen&state=other")
    expect(at_issuer.page.get_by_text("was not started in this browser")).to_be_visible()
    assert at_issuer.page.url == f"{at_issuer.url}/#/login"


def test_another_site_changes_nothing_and_reads_nothing(editor: WatchedPage, server: Server) -> None:
    """A page of another host in the same browser: its requests are refused by the browser, or by the server."""
    page = editor.page
    path = f"{server.url}/rlrun/v1/namespaces/{server.namespace}/runs/{LEARNING}"
    other = server.url.replace("127.0.0.1", "localhost")
    page.route(f"{other}/evil", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
    page.goto(f"{other}/evil")
    send = """async ([url, method, headers]) => {
        try {
            const mode = headers ? "cors" : "no-cors";
            const answer = await fetch(url, {method, headers, credentials: "include", mode});
            return `${answer.type} ${answer.status}`;
        } catch (error) { return error.name; }
    }"""
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status))
    for method, headers in (("POST", None), ("DELETE", {"X-Rlrun": "1"}), ("GET", {"Accept": "application/json"})):
        target = f"{path}:stop" if method == "POST" else path
        assert page.evaluate(send, [target, method, headers]) in ("opaque 0", "TypeError")
    assert not [status for status in statuses if status < 400], "a request of another site was answered"
    found = httpx.get(path, headers={"Authorization": f"Bearer {server.tokens['viewer']}"}).json()
    assert not found["spec"].get("stop")
    editor.problems.clear()


@pytest.mark.parametrize("headers", [{}, {"X-Rlrun": "1", "Origin": "https://evil.org"}], ids=str)
def test_a_stolen_way_to_the_server_needs_the_headers_of_the_page(
    editor: WatchedPage, server: Server, headers: dict[str, str]
) -> None:
    (cookie,) = editor.page.context.cookies()
    path = f"{server.url}/rlrun/v1/namespaces/{server.namespace}/runs/{LEARNING}:stop"
    answer = httpx.post(path, headers={**headers, "Cookie": f"{cookie['name']}={cookie['value']}"})
    assert (answer.status_code, answer.json()["reason"]) == (403, "CrossSiteRequest")


def test_the_page_cannot_be_framed_and_runs_no_inline_script(editor: WatchedPage) -> None:
    headers = httpx.get(editor.url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    ran = editor.page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.hacked = 1"; } catch (error) { return error.name; }
            document.body.append(script);
            return window.hacked ?? "refused";
        }"""
    )
    assert ran in ("TypeError", "refused")
    assert editor.problems, "the fixture notices violations of the policy"
    editor.problems.clear()
