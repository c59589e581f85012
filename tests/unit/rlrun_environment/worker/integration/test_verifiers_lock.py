"""Environments of verifiers load with the versions in the lock of the environment image."""

import sys
from pathlib import Path

import pytest
from rlrun_environment.worker.loading import load

from tests.support.locks import pins
from tests.support.source_tree import ROOT

SERVER = """
import asyncio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import TextContent, Tool

server = Server("shout")

@server.list_tools()
async def list_tools():
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return [Tool(name="shout", description="Shouts.", inputSchema=schema)]

@server.call_tool()
async def call_tool(name, arguments):
    return [TextContent(type="text", text=arguments["text"].upper())]

async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""


def test_these_tests_have_the_versions_of_the_image() -> None:
    image, here = (pins(ROOT / "requirements" / name) for name in ("environment-v0.lock", "dev.lock"))
    for name in ("verifiers", "mcp", "prime-sandboxes", "prime-tunnel", "openai", "openai-agents", "datasets"):
        assert here[name] == image[name]


@pytest.mark.slow
async def test_tools_of_a_server_over_stdio(write_environment, make_runner, make_group, upstream, tmp_path: Path):
    server = tmp_path / "shout_server.py"
    server.write_text(SERVER)
    call = {"id": "c1", "type": "function", "function": {"name": "shout", "arguments": '{"text": "abc"}'}}

    def reply(number, body):
        if body["messages"][-1]["role"] == "tool":
            return body["messages"][-1]["content"]
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    upstream.reply = reply
    runner = make_runner(f"""
    def right(completion):
        return float(completion[-1]["content"] == "ABC")

    def load_environment():
        server = {{"name": "shout", "command": {sys.executable!r}, "args": [{str(server)!r}]}}
        return vf.MCPEnv(mcp_servers=[server], dataset=rows("abc"), rubric=vf.Rubric(funcs=[right]), max_turns=3)
    """)
    result = await runner.run(make_group(rollouts=1))
    assert [(rollout.error, rollout.reward) for rollout in result.rollouts] == [(None, 1.0)]
    (tool,) = upstream.requests[0][1]["tools"]
    assert tool["function"]["name"] == "shout"
    assert tool["function"]["parameters"]["required"] == ["text"]


def test_an_environment_with_python_in_a_sandbox_loads(write_environment, tmp_path: Path) -> None:
    code = """
    def load_environment():
        return vf.PythonEnv(dataset=rows("abc"), rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    """
    environment = load(write_environment(code), tmp_path).environment
    assert isinstance(environment.sandbox_request.start_command, str)
