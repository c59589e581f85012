"""Sends metrics to Weights & Biases, without ever delaying or ending a run.

The client library runs in its own process (`wandb_process`), which reads metrics from a pipe. Every failure becomes a
warning with the reason WandbFailed and the last line of the client's output, and the run continues. If the server did
not receive a run (no key, no connection, or offline mode), the run's files for `wandb sync` are stored in S3 at the
end, next to the run's other artifacts.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.api.metric_aliases import with_aliases
from rlrun.api.run_sections.monitoring import Wandb
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Store

from rlrun_orchestrator.reporting import wandb_process

log = logging.getLogger(__name__)

# Run as a file, because it needs nothing of this package. -P keeps the file's folder off the import path.
COMMAND = (sys.executable, "-P", wandb_process.__file__)
KEY = "WANDB_API_KEY"
MAX_WAITING_BYTES = 1024**2
"""Maximum total size in bytes of lines that wait for a slow or connecting client. Further lines are dropped and
counted.
"""
START_SECONDS = 180.0
"""Time limit in seconds for the client to open the run, online and then offline."""
FINISH_SHARE = 0.8
"""Fraction of the closing time for the client. The rest is for the upload of its files."""
OUTPUT_BYTES = 4096
"""Number of bytes at the end of the client's output that are kept to report the last line."""
PASSED_ON = (
    "PATH", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy",
    "http_proxy", "no_proxy",
)  # fmt: skip
"""Environment variables passed to the client, in addition to WANDB_*. S3 credentials are not among them."""


def api_key(environment: Mapping[str, str]) -> str | None:
    """Return WANDB_API_KEY, or the first non-empty one of WANDB_API_KEY_0, _1, ... (one per Secret of envFrom), or None
    if there is no key.
    """
    numbered = sorted(
        (int(match[1]), value) for name, value in environment.items() if (match := re.fullmatch(rf"{KEY}_(\d+)", name))
    )
    return next((key.strip() for key in (environment.get(KEY, ""), *(v for _, v in numbered)) if key.strip()), None)


class WandbLog:
    """Log of this process's metrics in the run at Weights & Biases."""

    def __init__(
        self,
        run: ResolvedRun,
        store: Store,
        layout: RunLayout,
        *,
        environment: Mapping[str, str] = os.environ,
        command: Sequence[str] = COMMAND,
    ) -> None:
        names = run.spec.wandb or Wandb()
        self.arguments = {
            "project": names.project,
            "entity": names.entity,
            "name": names.name or run.spec.name or run.run.name,
            # The id is the same after restarts, so that new processes continue the same run.
            "id": run.run.uid,
            "config": {"spec": run.spec.to_json_dict(), "attempt": run.run.attempt},
        }
        """Arguments of `wandb.init`."""
        self.problem: Problem | None = None
        """Newest failure, or None if nothing has failed. A failure is not cleared later."""
        self.lost = 0
        """Number of dropped lines."""
        self.output = b""
        """End of the client's output."""
        self._key = None if names.offline else api_key(environment)
        self._folder = layout.root / "wandb"
        self._store = store
        self._environment = environment
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._offline = True

    async def start(self) -> None:
        """Start the client. Does not wait until the client has opened the run."""
        try:
            self._files = tempfile.TemporaryDirectory(prefix="wandb-", ignore_cleanup_errors=True)
            self._process = await self._spawn(self._files.name)
        except Exception as error:
            self._fail(f"the client failed: {type(error).__name__}: {error}")
            return
        self._task = asyncio.create_task(self._watch(self._process), name="wandb")
        self._send({"folder": self._files.name, "online": self._key is not None, "run": self.arguments})

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Send one line with the metrics and their aliases. Does not wait for the client."""
        self._send({"step": step, "values": with_aliases(values)})

    async def close(self, deadline: float) -> None:
        """Finish the run within `deadline` seconds, and store the run's files if the server does not have the run."""
        process, task, files = self._process, self._task, self._files
        if process is None or task is None or files is None:
            return
        end = time.monotonic() + deadline
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait({task}, timeout=FINISH_SHARE * deadline)
        if not task.done():
            self._fail(f"the client did not exit within {FINISH_SHARE * deadline:.0f} s")
            self._offline = True
            task.cancel()
            self._kill()
            await asyncio.wait({task, asyncio.ensure_future(process.wait())}, timeout=1.0)
        try:
            if self._offline:
                async with asyncio.timeout(max(1.0, end - time.monotonic())):
                    await asyncio.to_thread(self._keep_files, Path(files.name) / "wandb")
        except Exception as error:
            self._fail(f"the files of the run could not be stored in S3: {type(error).__name__}: {error}")
        finally:
            files.cleanup()

    # --- the process --------------------------------------------------------------------------------------------------

    def _send(self, line: Mapping[str, Any]) -> None:
        pipe = self._process.stdin if self._process is not None else None
        if pipe is None or pipe.is_closing() or self._task is None or self._task.done():
            self.lost += 1
        elif pipe.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.lost += 1
            self._fail(f"the client is too slow; dropped lines: {self.lost}; the run's own metrics are complete")
        else:
            pipe.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Record whether the client opens the run offline, and why the client fails, if it does."""
        assert process.stdout is not None
        output = asyncio.create_task(self._read_output(process))
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await process.stdout.readline()
            if answer:
                opened = json.loads(answer)
                self._offline = opened["mode"] != "online"
                if opened["problem"]:
                    self._fail(
                        f"{opened['problem'].rstrip('.')}. The run is stored as files for `wandb sync` in wandb/ "
                        "beside its metrics"
                    )
            code = await process.wait()
            cause = f"the client exited with code {code}" if code or not answer else ""
        except Exception as error:
            cause = f"the client failed: {type(error).__name__}: {error}"
            self._kill()
        finally:
            # Another process of the client may keep its output open.
            await asyncio.wait({output}, timeout=1.0)
            output.cancel()
        if cause:
            self._offline = True
            last_line = self.output.decode(errors="replace").strip().rpartition("\n")[2]
            self._fail(f"{cause}: {last_line}" if last_line else cause)

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(OUTPUT_BYTES):
            self.output = (self.output + chunk)[-OUTPUT_BYTES:]

    async def _spawn(self, folder: str) -> asyncio.subprocess.Process:
        passed = {
            name: value
            for name, value in self._environment.items()
            if name in PASSED_ON or (name.startswith("WANDB_") and not name.startswith(KEY))
        }
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**passed, "HOME": folder, **({KEY: self._key} if self._key else {})},
            start_new_session=True,
        )

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            # The client's service process is in the same process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _keep_files(self, root: Path) -> None:
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            self._store.put_bytes(self._folder / path.relative_to(root).as_posix(), path.read_bytes())

    def _fail(self, message: str) -> None:
        # The key may be part of the server's answer.
        message = message.replace(self._key, "(the key)") if self._key else message
        log.warning("Weights & Biases: %s", message)
        self.problem = Problem(
            reason=Reason.WANDB_FAILED, message=f"metrics do not reach Weights & Biases: {message}"[:500]
        )
