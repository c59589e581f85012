"""Client for vLLM's routes for adapters and full weights.

The engine's own model list and weight version are authoritative. A restart of the engine's container resets both to the
base model's values, which the next query detects.
"""

from collections.abc import Sequence
from typing import Any

import aiohttp
from rlrun.api.base.received import ENGINE_LIMITS, read_fast
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.client import read_body
from rlrun.service.errors import ProblemError, RequestRejected

ANSWER = "the engine's response"
UNNAMED = "replacing"
"""Weight version during a replacement. No policy has this name."""
PROBE_NAME = "rlrun-probe"
"""Name of the adapter used by `AdapterProbe`, which is hidden from all lists."""
LIKELY_TOKENS = 5
_DEV_HINT = ". Start vLLM 0.32 or newer with VLLM_SERVER_DEV_MODE=1"
LIST_TIMEOUT = aiohttp.ClientTimeout(total=10, connect=3)


class Engine:
    """Client of vLLM at `url`.

    All methods raise ProblemError: `EngineUnreachable`, with 503 if vLLM cannot be reached or a list or version cannot
    be read, and 504 if it does not respond in time; `AnswerTooLarge` (502).
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, load_deadline: float) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._load_timeout = aiohttp.ClientTimeout(total=load_deadline, connect=3)

    async def adapters(self) -> list[str]:
        """Return the names of the loaded adapters (the models with a parent) in alphabetical order."""
        status, text = await self._call("GET", "/v1/models", None, LIST_TIMEOUT)
        try:
            models = read_fast(text, ANSWER, ENGINE_LIMITS)["data"] if status == 200 else None
            if models is not None:
                names = [model["id"] for model in models if model.get("parent")]
                return sorted(name for name in names if name != PROBE_NAME)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ProblemError(503, _unreachable(f"GET /v1/models returned {status} {text[:200]}"))

    async def likely_tokens(self, model: str, prompts: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        """Return the most likely tokens after each prompt, with their log-probabilities.

        Raises ValueError, KeyError or TypeError if the request is rejected or the response lacks log-probabilities.
        """
        body = {
            "model": model, "prompt": prompts, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
            "min_p": 0.0, "seed": 0, "logprobs": LIKELY_TOKENS,
        }  # fmt: skip
        status, text = await self._call("POST", "/v1/completions", body, self._load_timeout)
        if status != 200:
            raise ValueError(f"the engine returned {status} for a completion: {_error_text(text)}")
        choices = sorted(read_fast(text, ANSWER, ENGINE_LIMITS)["choices"], key=lambda choice: choice["index"])
        if len(choices) != len(prompts):
            raise ValueError(f"the engine returned {len(choices)} completions for {len(prompts)} prompts")
        likely = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
        return [{str(token): float(logprob) for token, logprob in tokens.items()} for tokens in likely]

    async def load(self, name: str, path: str) -> None:
        """Load the adapter at `path` under a new name.

        Raises ProblemError `AdapterLoadRejected` with the engine's error text: 422 if the engine rejected the adapter,
        502 if it failed.
        """
        body = {"lora_name": name, "lora_path": path}
        status, text = await self._call("POST", "/v1/load_lora_adapter", body, self._load_timeout)
        if status == 200 or (status == 400 and "already been loaded" in text):
            return
        hint = ""
        if status == 404 and "Not Found" in text:
            hint = ". Start the engine with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        message = f"the engine returned {status} when loading {name}: {_error_text(text)}{hint}"
        raise ProblemError.of(502 if status >= 500 else 422, Reason.ADAPTER_LOAD_REJECTED, message)

    async def unload(self, name: str) -> None:
        """Unload the adapter if it is loaded. Raises ProblemError `AdapterUnloadRejected`."""
        status, text = await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, LIST_TIMEOUT)
        if status in (200, 404) or (status == 400 and "cannot be found" in text):
            return
        message = f"the engine returned {status} when unloading {name}: {_error_text(text)}"
        raise ProblemError.of(502, Reason.ADAPTER_UNLOAD_REJECTED, message)

    # --- full weights -------------------------------------------------------------------------------------------------

    async def weight_version(self) -> str:
        """Return the version of the current weights, which is `default` after the engine starts."""
        status, text = await self._call("GET", "/weight_info", None, LIST_TIMEOUT)
        try:
            if status == 200:
                return str(read_fast(text, ANSWER)["weight_version"])
        except (ValueError, KeyError, TypeError):
            pass
        raise ProblemError(
            503, _unreachable(f"GET /weight_info returned {status} {text[:200]}{_DEV_HINT * (status == 404)}")
        )

    async def replace_weights(self, name: str, path: str) -> None:
        """Replace the weights with those in the folder `path` and set their version to `name`.

        Requests in progress wait and continue with the new weights, with recomputed keys and values. No token is ever
        sampled from partly replaced weights: if the reload fails, the engine stays paused, with a version that is no
        policy's name, until the next replacement. Raises ProblemError `WeightsLoadRejected` with the engine's error
        text: 422 if the engine rejected the weights, 502 if it failed.
        """
        # The engine is ready if its version is the name of a policy. It must not be ready while it is paused.
        await self._post(name, "/update_weight_version", {"new_version": UNNAMED})
        await self._post(name, "/pause?mode=keep", None)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._post(name, "/collective_rpc", reload)
        await self._post(name, "/reset_prefix_cache?reset_running_requests=true", None)
        await self._post(name, "/resume", None)
        await self._post(name, "/update_weight_version", {"new_version": name})

    async def _post(self, name: str, path: str, body: dict[str, Any] | None) -> None:
        status, text = await self._call("POST", path, body, self._load_timeout)
        refused = path.startswith("/reset_prefix_cache") and '"success":false' in text.replace(" ", "")
        if status == 200 and not refused:
            return
        message = (
            f"the engine returned {status} from {path} for {name}: {_error_text(text)}{_DEV_HINT * (status == 404)}"
        )
        raise ProblemError.of(502 if status >= 500 or refused else 422, Reason.WEIGHTS_LOAD_REJECTED, message)

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: aiohttp.ClientTimeout
    ) -> tuple[int, str]:
        try:
            async with self._http.request(method, self._url + path, json=body, timeout=timeout) as response:
                answer = await read_body(response, f"{method} {path}", ENGINE_LIMITS.size)
                return response.status, answer.decode("utf-8", "replace")
        except RequestRejected as error:
            raise ProblemError(502, error.problem) from error
        except TimeoutError as error:
            raise ProblemError(
                504, _unreachable(f"no response to {method} {path} within {timeout.total:g} s")
            ) from error
        except aiohttp.ClientError as error:
            raise ProblemError(503, _unreachable(f"{method} {path}: {error or type(error).__name__}")) from error


def _unreachable(detail: str) -> Problem:
    return Problem(reason=Reason.ENGINE_UNREACHABLE, message=f"{detail}; check the engine's container in this pod")


def _error_text(text: str) -> str:
    try:
        body = read_fast(text)
        inner = body.get("error", body)
        return str(inner.get("message", inner))[:500]
    except (ValueError, AttributeError):
        return text[:500]
