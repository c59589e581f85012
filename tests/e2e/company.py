"""A company's network in one pod: S3 and a hub behind TLS of a private authority, and the proxy before them.

The names of the servers resolve nowhere: only the proxy knows where they are.
"""

from dataclasses import dataclass
from pathlib import Path

from demo.install import BUCKET, MODEL_URI, SYSTEM_NAMESPACE, S3Access
from demo.kubectl import Kubectl
from local_cluster.control_plane.pki import CertificateAuthority
from tests.e2e.script_pod import ScriptPod

NAME = "company"
HUB, S3 = "hub.company.test", "s3.company.test"
SCRIPT = """
import asyncio, hashlib, os, ssl, sys
from urllib.parse import urlsplit

import boto3
from aiohttp import web

HUB, S3 = sys.argv[1], sys.argv[2]
BUCKET, PREFIX = sys.argv[3], sys.argv[4] + "/"
STORE = urlsplit(os.environ["AWS_ENDPOINT_URL_S3"])
END = b"\\r\\n\\r\\n"

async def copy(reader, writer):
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

async def forward(reader, writer, host, port):
    there = await asyncio.open_connection(host, port)
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

async def proxy(reader, writer):
    try:
        head = await reader.readuntil(END)
    except asyncio.IncompleteReadError:
        # A probe, which sends nothing.
        writer.close()
        return
    method, target, _ = head.partition(b"\\r\\n")[0].decode().split(" ")
    print(method, target, flush=True)
    ports = {HUB + ":443": 8443, S3 + ":443": 8444}
    if method != "CONNECT" or target not in ports:
        writer.write(b"HTTP/1.1 403 Forbidden\\r\\nContent-Length: 0" + END)
        writer.close()
        return
    writer.write(b"HTTP/1.1 200 Connection established" + END)
    await forward(reader, writer, "127.0.0.1", ports[target])

def load():
    s3 = boto3.client("s3")
    found = s3.list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)["Contents"]
    return {o["Key"].removeprefix(PREFIX): s3.get_object(Bucket=BUCKET, Key=o["Key"])["Body"].read() for o in found}

def hub(files):
    async def handle(request):
        parts = request.path.strip("/").split("/")
        if parts[4:5] == ["tree"]:
            entries = [(name, data, hashlib.sha1(data).hexdigest()) for name, data in files.items()]
            return web.json_response([{"type": "file", "path": n, "size": len(d), "oid": o} for n, d, o in entries])
        if parts[:2] == ["api", "models"]:
            names = [{"rfilename": name} for name in files]
            return web.json_response({"id": "/".join(parts[2:4]), "sha": parts[-1], "siblings": names})
        data = files.get("/".join(parts[4:]))
        if data is None:
            return web.json_response({"error": "not found"}, status=404)
        headers = {"ETag": '"' + hashlib.sha256(data).hexdigest() + '"', "X-Repo-Commit": parts[3]}
        return web.Response(body=data, headers=headers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app

async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain("/script/tls.crt", "/script/tls.key")
    runner = web.AppRunner(hub(load()), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, 8443, ssl_context=context).start()
    await asyncio.start_server(lambda r, w: forward(r, w, STORE.hostname, STORE.port), None, 8444, ssl=context)
    server = await asyncio.start_server(proxy, None, 3128)
    await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Company:
    """Where the proxy is, and who vouches for the servers."""

    kubectl: Kubectl
    pod: ScriptPod
    proxy: str
    """URL of the proxy for pods."""
    ca: str
    """Certificate of the private authority, PEM."""

    def connections(self) -> list[str]:
        """Return what the proxy was asked for: METHOD host:port."""
        return self.kubectl("logs", NAME, "-n", SYSTEM_NAMESPACE, "--tail=-1").splitlines()

    def stop(self) -> None:
        """Delete all objects."""
        self.pod.stop(self.kubectl)


def start_company(kubectl: Kubectl, s3: S3Access, folder: Path) -> Company:
    """Start the pod and wait until it is ready."""
    authority = CertificateAuthority(folder)
    pair = authority.issue(NAME, NAME, addresses=[HUB, S3])
    pod = ScriptPod(
        name=NAME,
        namespace=SYSTEM_NAMESPACE,
        script=SCRIPT,
        target_port=3128,
        port=3128,
        files={"tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text()},
        arguments=[HUB, S3, BUCKET, MODEL_URI.key],
        env=s3.job_environment(),
        env_from=[s3.secret_name],
    )
    pod.start(kubectl)
    proxy = f"http://{NAME}.{SYSTEM_NAMESPACE}.svc:3128"
    return Company(kubectl, pod, proxy, authority.pair.certificate.read_text())
