"""Test of unmodified public environments, from source to scored groups, with the reason for each one that fails.

    python -m bench.public_packages --clones FOLDER --scratch FOLDER [NAME...]
    python -m bench.public_packages --page

The folder of clones has a clone of each repository in public_packages.yaml, in a subfolder named after the repository's
key. Each environment is built and bundled as `rlrun env push` does, installed and loaded by the environment's
server with the interpreters of the image's locks, and plays groups through the orchestrator's gateway with an engine
that answers by script. Each environment is also run with verifiers' own evaluator, which shows whether it can be run at
all. Rows of data sets are made up. uv must find the Python versions of the image and Python 3.12 on this machine.
Writes docs/bench/environments/packages.json and docs/public-environments.md. Results of environments that are not named
are kept.
"""

import argparse
import asyncio
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import uv
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.api.run_sections.rollouts import Sampling, TrajectoryStrategy
from rlrun.constants import Reason
from rlrun.protocol.environment import EnvironmentConfig, EnvironmentInfo, GroupRequest, Split
from rlrun.storage.environment_image import PYTHONS, Generation
from rlrun.storage.verifiers_generations.generation_choice import image_versions
from rlrun_cli.inputs.bundle.dependency_bundle import check_size, find_dependencies
from rlrun_cli.inputs.package_generation import generation_of
from rlrun_cli.inputs.wheel_builder import Wheel, build_wheel
from rlrun_cli.terminal.errors import CliError
from rlrun_environment.server import EnvironmentServer
from rlrun_environment.settings import EnvironmentProcessSettings
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.scoring import ScoringSettings, score_group
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.request_router import RequestRouter
from rlrun_orchestrator.inference.gateway.responses import to_event_stream
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind, SamplingRules
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool
from rlrun_orchestrator.inference.sidecar_client import SidecarClient

from bench import made_up_data
from tests.support.fake_replica import FakeReplica, chat_answer
from tests.support.policy_refs import policy

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".yaml")
RESULTS = ROOT / "docs" / "bench" / "environments" / "packages.json"
PAGE = ROOT / "docs" / "public-environments.md"
OWNER = "public"
POLICY = policy(3, "s3://bucket/run")
EXAMPLES, ROLLOUTS = 2, 2
SECONDS = 2700.0
"""Time limit in seconds of loading, of a group, and of verifiers' own evaluator. It is long, so that a busy host does
not change a result.
"""
TIMED_OUT = 124
POLL_SECONDS = 0.2
UPSTREAM_PYTHON = "3.12"
"""Python of verifiers' own evaluator, which all packages of the list allow."""
MAX_CAUSE = 400
REPLY = "<think>a</think><answer>A</answer><judgement>YES</judgement> Final answer: \\boxed{A}"
VALUES: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
"""Arguments of scripted calls by type. All other arguments are texts."""
KEYS = ("OPENAI_API_KEY", "PRIME_API_KEY", "SERPER_API_KEY", "GITHUB_TOKEN")
"""Variables required by environments, set to a value that no service accepts."""
HEAD = """# Public environments

Written by `python -m bench.public_packages` from [its results](bench/environments/packages.json). The environments
are unmodified. Each one is built and bundled as `rlrun env push` does, installed and loaded by the environment's
server, and plays {examples} groups of {rollouts} rollouts through the orchestrator's gateway. The engine answers by
script, with a call of the first tool if there are tools. Data sets have rows that were made up in their schema, and
judges are the scripted engine. Each one is also run with verifiers' own evaluator in the newest version of its form
({versions}) in Python {python}, with the same rows and engine on the same machine, which reaches a package index only.

Chosen by this rule: the packages in `environments/` of the repository, in alphabetical order; without those that tests,
docs, bench or examples of this repository name, those whose code names a sandbox, docker or modal, and those that
require a git repository or a URL; of the rest each one with a number divisible by the one given here, from 0. Of
verifiers' own repository: all that `bench.public_environments` does not run.

{repositories}

{counts}

| environment | form | outcome | because | verifiers' own evaluator |
|---|---|---|---|---|
"""


class ScriptedEngine(FakeReplica):
    """Engine that calls the first tool once if a request has tools, and otherwise gives a fixed answer. It also acts as
    a judge.
    """

    async def chat(self, request: web.Request) -> web.Response:
        """Answer a chat request."""
        body = json.loads(await request.read())
        prompt = " ".join(str(message.get("content")) for message in body["messages"])
        tools = body.get("tools") or []
        asked = any(message["role"] == "tool" for message in body["messages"])
        text = "" if tools and not asked else REPLY
        answer = chat_answer(body["model"], [ord(c) for c in prompt], [ord(c) for c in text or "call"], text)
        if not text:
            function = tools[0]["function"]
            fields = (function.get("parameters") or {}).get("properties") or {}
            arguments = {name: VALUES.get(kind.get("type"), "a") for name, kind in fields.items()}
            called = {"name": function["name"], "arguments": json.dumps(arguments)}
            choice = answer["choices"][0]
            choice["message"]["tool_calls"] = [{"id": "call-1", "type": "function", "function": called}]
            choice["finish_reason"] = "tool_calls"
        if body.get("stream"):
            events = to_event_stream(CompletionKind.chat, answer, include_usage=True)
            return web.Response(body=events, content_type="text/event-stream")
        return web.json_response(answer)


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[LiveGroups, str, str]]:
    """Yield the open groups, the URL of the gateway, and the URL of the engine behind it."""
    groups = LiveGroups("owner/model")

    async def no_addresses() -> list[ReplicaAddresses]:
        return []

    engine = TestServer(ScriptedEngine(adapters={POLICY.name}).application())
    async with aiohttp.ClientSession() as http, engine:
        url = str(engine.make_url("")).rstrip("/")
        pool = ReplicaPool(http, no_addresses, groups.policies, poll_interval=60)
        addresses = ReplicaAddresses(url, url)
        pool.replicas[addresses] = Replica(
            addresses, SidecarClient(http, url), adapters={POLICY.name}, is_answering=True
        )
        rules = SamplingRules(Sampling(max_tokens=64), seq_len=65536)
        front = Gateway(groups, rules, RequestRouter(http, pool, groups, wait=1, deadline=60), None)
        async with TestServer(front.application()) as served:
            yield groups, str(served.make_url("")).rstrip("/"), url


async def play(entry: Mapping[str, Any], project: Path, scratch: Path) -> dict[str, Any]:
    """Build, install and run an environment as the platform does. Returns the last stage that it reached, and the cause
    if it failed.
    """
    result: dict[str, Any] = {"outcome": "fails"}
    try:
        wheel = await asyncio.to_thread(build_wheel, project)
        wheels = [*await asyncio.to_thread(find_dependencies, [wheel]), wheel]
        check_size(wheels)
        result["form"] = str(generation_of(wheels))
    except (CliError, ValueError) as error:
        return {
            **result,
            "outcome": "refused",
            "stage": "push",
            "cause": _one_line([error, *getattr(error, "details", ())]),
        }
    result["bundled"] = len(wheels) - 1
    async with gateway() as (groups, url, engine), _packages(wheels) as packages_url:
        os.environ["OPENAI_BASE_URL"] = f"{engine}/v1"
        config = EnvironmentConfig(
            id=f"{OWNER}/{wheel.name}",
            args=_with_endpoint(entry.get("args", {}), f"{engine}/v1"),
            harness={"id": "null"} if result["form"] == "v1" else None,
            packages_url=packages_url,
        )
        settings = EnvironmentProcessSettings(
            dir=scratch / "environment", interpreters=scratch / "interpreters", load_deadline=SECONDS
        )
        server = EnvironmentServer(config, settings)
        preparing = asyncio.create_task(server.prepare())
        try:
            info = await _wait_until_loaded(server)
            if info.problem or not info.ready:
                problem = info.problem
                cause = f"{problem.reason}: {problem.message}" if problem else "it did not load in time"
                return {**result, "outcome": _outcome(cause), "stage": "load", "cause": _one_line([cause])}
            return {**result, **await _groups(server, info, groups, url)}
        finally:
            preparing.cancel()
            with suppress(asyncio.CancelledError):
                await preparing
            await server.pool.close()


def _outcome(cause: str) -> str:
    """Return `refused` if the platform rejects what the environment does, or `fails` for any other cause."""
    return "refused" if cause.startswith((Reason.ENVIRONMENT_INSTALL_FAILED, Reason.REQUEST_REFUSED)) else "fails"


async def _wait_until_loaded(server: EnvironmentServer) -> EnvironmentInfo:
    for _ in range(int(2 * SECONDS / POLL_SECONDS)):
        info = server.info()
        if info.ready or info.problem:
            break
        await asyncio.sleep(POLL_SECONDS)
    return info


async def _groups(server: EnvironmentServer, info: EnvironmentInfo, groups: LiveGroups, url: str) -> dict[str, Any]:
    split = Split.train if info.train_examples else Split.eval
    errors, rewards = set(), set()
    for example in range(min(EXAMPLES, info.train_examples or info.eval_examples)):
        live = groups.open(POLICY, ordinal=example)
        request = GroupRequest(
            group_id=live.id, example_index=example, split=split, rollouts=ROLLOUTS,
            base_url=f"{url}/groups/{live.id}/v1", model=live.model, deadline_seconds=SECONDS,
        )  # fmt: skip
        answer = await server.pool.run(request)
        scoring = ScoringSettings(ROLLOUTS, TrajectoryStrategy.interleaved, 65536)
        group = Group(live.id, SampledExample(example, Example(info.name, example)), live.versions)
        score_group(group, answer, live.turns_by_rollout(), live.final_refusals(), scoring)
        errors |= {f"{problem.reason}: {problem.message}" for problem in group.errors}
        rewards |= {one.result.reward for one in group.rollouts if one.result.error is None}
    if errors:
        return {"outcome": _outcome(min(errors)), "stage": "rollouts", "cause": _one_line([min(errors)])}
    return {"outcome": "plays", "rewards": sorted(rewards)}


@asynccontextmanager
async def _packages(wheels: list[Wheel]) -> AsyncIterator[str]:
    """Serve the wheels like the orchestrator. Yields the server's URL."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:") as tar:
        for wheel in wheels:
            member = tarfile.TarInfo(wheel.file)
            member.size = len(wheel.data)
            tar.addfile(member, io.BytesIO(wheel.data))

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=archive.getvalue())

    app = web.Application()
    app.router.add_get("/environments/{owner}/{package}", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def run_upstream(entry: Mapping[str, Any], project: Path, scratch: Path, form: str) -> dict[str, Any]:
    """Run the environment with verifiers' own evaluator, in its newest version for this form. Returns the outcome, with
    the cause of a failure.
    """
    python = scratch / "upstream"
    shutil.rmtree(python, ignore_errors=True)
    version = f"verifiers=={image_versions()[Generation(form)]}"
    install = ["pip", "install", "--python", str(python), str(project), version]
    for command in (["venv", "--python", UPSTREAM_PYTHON, str(python)], install):
        code, output = await _execute([uv.find_uv_bin(), *command], scratch)
        if code:
            return {"outcome": "fails", "stage": "install", "cause": _error(output)}
    _add_hook(python)
    outputs = scratch / "outputs"
    shutil.rmtree(outputs, ignore_errors=True)
    outputs.mkdir()
    module = project.name.replace("-", "_")
    async with gateway() as (_, _, engine):
        base = f"{engine}/v1"
        os.environ["OPENAI_BASE_URL"] = base
        command = [str(python / "bin" / "vf-eval"), module, "-m", "judge", "-n", str(EXAMPLES), "-r", str(ROLLOUTS)]
        if form == "v1":
            own = ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
            command += ["--no-push", *([] if entry.get("own_agents") else own), "--client.base-url", base]
            command += ["--client.api-key-var", KEYS[0]]
        else:
            arguments = json.dumps(_with_endpoint(entry.get("args", {}), base))
            command += ["-b", base, "-k", KEYS[0], "-a", arguments, "-s", "--disable-env-server"]
        code, output = await _execute(command, outputs)
    if code == TIMED_OUT:
        return {"outcome": "fails", "stage": "run", "cause": output}
    lines = [line for file in outputs.rglob("*.jsonl") for line in file.read_text().splitlines()]
    errors = [error for line in lines for error in _recorded_errors(json.loads(line))]
    output += "".join(file.read_text() for file in outputs.rglob("*.log"))
    if silent := re.search("Error calling .*", output):
        # verifiers counts the failure as a reward of 0.
        return {"outcome": "fails", "stage": "rewards", "cause": _one_line([silent[0]])}
    if code or not lines or errors:
        return {"outcome": "fails", "stage": "run", "cause": _one_line(errors[:1] or [_error(output)])}
    return {"outcome": "plays"}


def _recorded_errors(value: Any) -> list[Any]:
    """Return the errors in a line of results, at any depth."""
    if isinstance(value, list):
        return [error for entry in value for error in _recorded_errors(entry)]
    if not isinstance(value, dict):
        return []
    return [
        error
        for key, entry in value.items()
        for error in ([entry] if key in ("error", "errors") and entry else _recorded_errors(entry))
    ]


async def _execute(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command. Returns its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return TIMED_OUT, f"no end within {SECONDS:g} s"
    return process.returncode or 0, output.decode(errors="replace")


def _error(output: str) -> str:
    """Return the last line that names an error, or the last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("Using Python")]
    named = [line for line in lines if "Error" in line]
    return _one_line(named[-1:] or lines[-4:])


def _with_endpoint(args: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    return {name: value.format(endpoint=endpoint) if isinstance(value, str) else value for name, value in args.items()}


def _one_line(parts: list[Any]) -> str:
    text = " ".join(" ".join(map(str, parts)).replace("|", "/").split())
    # The page must not contain the folder of Python on this machine.
    text = re.sub(r"[^\s\"'`]*/lib/python3[.\d]*/", "", text).replace(str(Path.home()), "~")
    # Causes are at the end of a traceback.
    return text if len(text) <= MAX_CAUSE else f"{text[: MAX_CAUSE // 2]} ... {text[-MAX_CAUSE // 2 :]}"


def _add_hook(python: Path) -> None:
    (packages,) = python.glob("lib/*/site-packages")
    shutil.copy(made_up_data.__file__, packages)
    (packages / "made_up_data.pth").write_text("import made_up_data\n")


def make_interpreters(folder: Path) -> None:
    """Create the interpreters of the image's workers from the image's locks, with the code of this checkout."""
    for version, generation in itertools.product(map(str, PYTHONS), Generation):
        python = folder / version / generation
        if not python.exists():
            lock = ROOT / "requirements" / f"environment-{generation}.lock"
            install = ["pip", "install", "--require-hashes", "--no-deps", "--python", str(python), "-r", str(lock)]
            for command in (["venv", "--python", version, str(python)], install):
                subprocess.run([uv.find_uv_bin(), "--quiet", *command], check=True)
        _add_hook(python)
        code = "".join(f"{ROOT / part}\n" for part in ("core", "orchestrator_image"))
        (python / f"lib/python{version}/site-packages/code.pth").write_text(code)


def check_out(clone: Path, commit: str, path: str, target: Path) -> Path:
    """Extract the folder `path` of a commit below `target`. Returns the extracted folder."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", clone, "archive", commit, path], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return target / path


def main() -> None:
    """Test environments one after another, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--page", action="store_true", help="only write the page from the stored results")
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments (default: all)")
    arguments = parser.parse_args()
    listed = yaml.safe_load(LIST.read_text())
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.page:
        make_interpreters(arguments.scratch / "interpreters")
        os.environ.update(dict.fromkeys(KEYS, "none"))
    for entry in [] if arguments.page else listed["environments"]:
        if (arguments.names and entry["name"] not in arguments.names) or "untried" in entry:
            continue
        print(f"--- {entry['name']}", flush=True)
        repository = listed["repositories"][entry["repository"]]
        clone = arguments.clones / entry["repository"]
        path = f"environments/{entry['name']}"
        data = arguments.scratch / "data.json"
        data.write_text(json.dumps({key: entry.get(key, {}) for key in ("rows", "files")}))
        os.environ[made_up_data.VARIABLE] = str(data)
        project = check_out(clone, repository["commit"], path, arguments.scratch / "source")
        form = "v1" if entry["repository"] == "verifiers" else "v0"
        found = {
            "form": form,
            "here": asyncio.run(play(entry, project, arguments.scratch)),
            "upstream": asyncio.run(run_upstream(entry, project, arguments.scratch, form)),
        }
        print(json.dumps(found, indent=1), flush=True)
        # Another process may have written results of other environments.
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[entry["name"]] = found
        RESULTS.write_text(one_a_line(results))
    PAGE.write_text(page(listed, results))


def one_a_line(results: Mapping[str, Any]) -> str:
    """Return JSON text with one environment per line."""
    lines = (f"{json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in sorted(results.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def page(listed: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return the page of all results."""
    rows = []
    found: dict[Generation, dict[tuple[bool, str], list[str]]] = {form: defaultdict(list) for form in Generation}
    for entry in listed["environments"]:
        name = entry["name"]
        if "untried" in entry:
            rows.append(f"| {name} | {entry['form']} | not tried | it {entry['untried']} | not run |")
            continue
        form, here = results[name]["form"], results[name]["here"]
        upstream = results[name].get("upstream", {"outcome": "not run"})
        own = ": ".join(upstream[key] for key in ("outcome", "cause") if key in upstream)
        rows.append(f"| {name} | {form} | {here['outcome']} | {_cell(here.get('cause', ''))} | {_cell(own)} |")
        found[Generation(form)][here["outcome"] == "plays", upstream["outcome"]].append(name)
    versions = image_versions()
    head = HEAD.format(
        examples=EXAMPLES,
        rollouts=ROLLOUTS,
        python=UPSTREAM_PYTHON,
        versions=" and ".join(versions[form] for form in Generation),
        repositories="\n".join(
            f"- {repository['url']} at `{repository['commit'][:12]}`"
            + (f", a public copy of {repository['copy_of']}" if "copy_of" in repository else "")
            + f": {repository['every']}"
            for repository in listed["repositories"].values()
        ),
        counts="\n".join(_count(form, names) for form, names in found.items()),
    )
    return head + "".join(f"{row}\n" for row in rows)


def _count(form: Generation, names: Mapping[tuple[bool, str], list[str]]) -> str:
    both, missed, extra = (names.get(key, []) for key in ((True, "plays"), (False, "plays"), (True, "fails")))
    not_run = [name for (_, outcome), listed in names.items() if outcome == "not run" for name in listed]
    text = (
        f"**{len(both)} of the {len(both) + len(missed)} {form} environments that verifiers' own evaluator plays, "
        f"play here.** Not here: {', '.join(missed) or 'none'}. Only here: {', '.join(extra) or 'none'}."
    )
    return f"{text} Not yet run with it: {', '.join(not_run)}." if not_run else text


def _cell(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`" if text else ""


if __name__ == "__main__":
    main()
