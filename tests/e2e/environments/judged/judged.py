"""An environment whose reward comes from a judge outside of the run, over TLS."""

import asyncio
import ssl
import urllib.request
from typing import Any

import verifiers as vf
from datasets import Dataset

WORDS = ["apple", "river", "stone", "cloud"]
SECONDS = 30.0


def load_environment(url: str, ca: str) -> vf.Environment:
    """Four prompts. `url` is the judge's address, `ca` the certificate (PEM) of its authority."""
    context = ssl.create_default_context(cadata=ca)
    # It reads HTTPS_PROXY, as most clients do.
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    async def ask(address: str) -> str:
        response = await asyncio.to_thread(opener.open, address, timeout=SECONDS)
        return str(response.read().decode())

    async def refused(address: str) -> float:
        try:
            await ask(address)
        except OSError as error:
            return float("403" in str(error))
        return 0.0

    async def judge(**_: Any) -> float:
        """Return the judge's score."""
        return float(await ask(url))

    async def other_host_refused(**_: Any) -> float:
        """Return 1 if the proxy refuses a host that the run does not list."""
        return await refused("https://other.example.com/")

    async def metadata_refused(**_: Any) -> float:
        """Return 1 if the proxy refuses the cloud's metadata address."""
        return await refused("https://169.254.169.254/")

    async def redirect_refused(**_: Any) -> float:
        """Return 1 if the proxy refuses the metadata address also where the allowed host redirects to it."""
        return await refused(f"{url}redirect")

    rows = [{"prompt": [{"role": "user", "content": word}], "answer": word[::-1]} for word in WORDS]
    rubric = vf.Rubric(
        funcs=[judge, other_host_refused, metadata_refused, redirect_refused], weights=[1.0, 0.0, 0.0, 0.0]
    )
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)
