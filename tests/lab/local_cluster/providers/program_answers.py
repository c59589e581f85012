"""What docker, kind, kubectl and helm answer, from one state: the images of a Docker engine, and the clusters of kind
with the images of their nodes and the objects of their API server. They refuse what the real programs refuse.

Written from these sources:

- docker/cli: cmd/docker/builder.go (which builder `docker build` takes), cli/command/image/build.go (flags of the
  legacy builder), cli/command/image/list.go, cli/command/system/version.go, cli/command/container/exec.go
- docker/docs: content/manuals/build/building/variables.md (BUILDX_BUILDER, BUILDX_NO_DEFAULT_ATTESTATIONS)
- kubernetes-sigs/kind, before 0.33.0: pkg/cmd/kind (flags), pkg/cmd/kind/load/docker-image/docker-image.go,
  pkg/cluster/internal/create/create.go, pkg/cluster/internal/delete/delete.go, pkg/cluster/nodeutils/util.go,
  pkg/cluster/internal/kubeconfig/internal/kubeconfig/lock.go,
  pkg/cluster/internal/providers/common/namer.go, pkg/internal/apis/config/validate.go; issue 3795 (an image with an
  attestation cannot be loaded)

Imports are few because each call starts an interpreter without site-packages.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    State = dict[str, Any]
else:
    State = dict


class Refused(Exception):
    """Failure of a program: its exit status and what it prints on stderr."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def docker(arguments: Sequence[str], state: State) -> str:
    """Answer as docker."""
    engine = state["engine"]
    if engine is None:
        raise Refused(
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
        )
    match list(arguments):
        case ["version", "--format", template]:
            return str(template.replace("{{.Server.Os}}", engine[0]).replace("{{.Server.Arch}}", engine[1]))
        case ["build", *rest]:
            return docker_build(rest, state["images"])
        case ["tag", source, target]:
            state["images"][target] = docker_image(source, state)
            return ""
        case ["image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}"]:
            return "\n".join([*(f"{name} {image['id']}" for name, image in state["images"].items()), "<none>:<none> i"])
        case ["image", "rm", name]:
            docker_image(name, state)
            del state["images"][name]
            return f"Untagged: {name}"
        case ["exec", node, "ctr", "--namespace=k8s.io", "images", *rest]:
            cluster = state["clusters"].get(node.removesuffix("-control-plane"))
            if cluster is None or not node.endswith("-control-plane"):
                raise Refused(f"Error response from daemon: No such container: {node}")
            return ctr_images(rest, cluster["images"])
        case ["run", *_]:
            return ""
    raise Refused(f"docker: no answer is known for {arguments}")


def docker_image(name: str, state: State) -> dict[str, Any]:
    """Return an image of the engine."""
    if name not in state["images"]:
        raise Refused(f"Error response from daemon: No such image: {name}")
    return dict(state["images"][name])


def docker_build(arguments: list[str], images: dict[str, Any]) -> str:
    """Build: only with flags that the legacy builder and BuildKit know alike, and from files that exist."""
    given: dict[str, list[str]] = {"--build-arg": [], "--file": [], "--tag": []}
    context = []
    while arguments:
        word = arguments.pop(0)
        if not word.startswith("-"):
            context.append(word)
        elif word in given:
            given[word].append(arguments.pop(0))
        else:
            raise Refused(f"unknown flag: {word}\n\nUsage:  docker build [OPTIONS] PATH | URL | -", 125)
    if len(context) != 1:
        raise Refused('"docker build" requires 1 argument.')
    dockerfile = given["--file"][0]
    if not os.path.isdir(context[0]) or not os.path.isfile(dockerfile):
        raise Refused(f"unable to evaluate symlinks in Dockerfile path: lstat {dockerfile}: no such file or directory")
    if os.environ.get("BUILDX_BUILDER", "") not in ("", "default"):
        return "WARNING: No output specified with docker-container driver. Build result will only remain in the cache."
    image = {
        "id": f"sha256:{dockerfile}{given['--build-arg']}{given['--tag']}".replace(" ", ""),
        "attested": os.environ.get("BUILDX_NO_DEFAULT_ATTESTATIONS") != "1",
    }
    images.update(dict.fromkeys(given["--tag"], image))
    return "Successfully built"


def ctr_images(arguments: list[str], images: dict[str, str]) -> str:
    """Answer as `ctr images` in a node."""
    match arguments:
        case ["list", "--quiet"]:
            return "\n".join(images)
        case ["list"]:
            kind = "application/vnd.docker.distribution.manifest.v2+json"
            rows = [f"{name} {kind} {digest} 3.5 GiB linux/amd64 -" for name, digest in images.items()]
            return "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows])
        case ["remove", *names]:
            for name in names:
                images.pop(name)
            return "\n".join(names)
    raise Refused(f"ctr: no answer is known for {arguments}")


def kind(arguments: Sequence[str], state: State) -> str:
    """Answer as kind. Everything but `version` needs the engine."""
    if list(arguments) == ["version"]:
        return str(state["versions"]["kind"])
    clusters = state["clusters"]
    if state["engine"] is None:
        raise Refused('ERROR: failed to list clusters: command "docker ps -a" failed with error: exit status 1')
    match list(arguments):
        case ["get", "clusters"]:
            if not clusters:
                print("No kind clusters found.", file=sys.stderr)
            return "\n".join(clusters)
        case ["create", "cluster", *rest]:
            return kind_create(flags(rest, "--name", "--wait", "--config", "--kubeconfig"), state)
        case ["delete", "cluster", *rest]:
            given = flags(rest, "--name", "--kubeconfig")
            clusters.pop(given["--name"], None)
            write_kubeconfig(given["--kubeconfig"], "")
            return ""
        case ["load", "docker-image", "--name", name, *images]:
            for image in images:
                if image not in state["images"]:
                    raise Refused(f'ERROR: image: "{image}" not present locally')
            node = kind_node(name, clusters)
            if not os.path.isdir(os.environ.get("TMPDIR", "/tmp")):
                raise Refused("ERROR: failed to create tempdir: stat: no such file or directory")
            for image in images:
                if state["images"][image]["attested"]:
                    raise Refused("ERROR: failed to load image: ctr: content digest sha256:0e1: not found")
                digest = state["images"][image]["id"]
                node["images"] |= {full_name(image): digest, f"import-2026-11-26@{digest}": digest}
            return ""
        case ["load", "image-archive", *archives, "--name", name]:
            import tarfile

            node = kind_node(name, clusters)
            for archive in archives:
                with tarfile.open(archive) as tar:
                    manifest = json.load(tar.extractfile("manifest.json") or sys.stdin)
                node["images"].update({full_name(tag): "sha256:a" for entry in manifest for tag in entry["RepoTags"]})
            return ""
    raise Refused(f"kind: no answer is known for {arguments}")


def kind_create(given: dict[str, str], state: State) -> str:
    """Create a cluster: its name must be free and valid, its file must describe one node."""
    name, clusters = given["--name"], state["clusters"]
    (config,) = read_yaml(read(given["--config"]), state)
    if name in clusters:
        raise Refused(f'ERROR: failed to create cluster: node(s) already exist for a cluster with the name "{name}"')
    if not re.fullmatch(r"[a-z0-9.-]+", name):
        raise Refused(f"ERROR: failed to create cluster: '{name}' is not a valid cluster name")
    if (config["kind"], config["apiVersion"]) != ("Cluster", "kind.x-k8s.io/v1alpha4"):
        raise Refused("ERROR: failed to create cluster: unknown apiVersion")
    mappings = config["nodes"][0]["extraPortMappings"]
    clusters[name] = {"images": {}, "objects": {}, "ready": True, "ports": [m["hostPort"] for m in mappings]}
    write_kubeconfig(given["--kubeconfig"], f"kind-{name}")
    return ""


def write_kubeconfig(path: str, context: str) -> None:
    """Write a kubeconfig, unless another kind has locked it, running or killed."""
    if os.path.exists(f"{path}.lock"):
        raise Refused(f"ERROR: failed to lock config file: open {path}.lock: file exists")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as handle:
        handle.write(f"apiVersion: v1\nkind: Config\ncurrent-context: {context}\n")


def kind_node(name: str, clusters: dict[str, Any]) -> dict[str, Any]:
    """Return the node of a cluster."""
    if name not in clusters:
        raise Refused(f'ERROR: no nodes found for cluster "{name}"')
    node: dict[str, Any] = clusters[name]
    return node


def full_name(image: str) -> str:
    """Return the name under which a node knows an image (`sanitizeImage`)."""
    name = image if "/" in image else f"library/{image}"
    first = name.split("/")[0]
    if not re.search("[.:]", first) and first != "localhost":
        name = f"docker.io/{name}"
    return name if ":" in name.split("/")[-1] else f"{name}:latest"


def flags(words: list[str], *known: str) -> dict[str, str]:
    """Parse `--flag value` pairs. cobra refuses any other word."""
    given = dict(zip(words[::2], words[1::2], strict=True))
    for name in given:
        if name not in known:
            raise Refused(f"ERROR: unknown flag: {name}")
    return given


def kubectl(arguments: Sequence[str], state: State) -> str:
    """Answer as kubectl with the API server of the cluster that the kubeconfig names."""
    if list(arguments[:2]) == ["version", "--client"]:
        return str(state["versions"]["kubectl"])
    if arguments[0] != "--kubeconfig":
        raise Refused("error: this test allows no call without --kubeconfig")
    if not os.path.exists(arguments[1]):
        raise Refused(f"error: stat {arguments[1]}: no such file or directory")
    context = re.search(r"current-context: kind-(\S+)", read(arguments[1]))
    cluster = state["clusters"].get(context[1]) if context else None
    if cluster is None or not cluster["ready"] or state["engine"] is None:
        raise Refused("The connection to the server 127.0.0.1:34567 was refused - did you specify the right host?")
    objects = cluster["objects"]
    match list(arguments[2:]):
        case ["apply", "--server-side", "--force-conflicts", "--field-manager=local-cluster", "-f", "-"]:
            return kubectl_apply(read_yaml(sys.stdin.read(), state), objects)
        case ["get", "nodes", "--no-headers"]:
            return f"{context and context[1]}-control-plane   Ready   control-plane   1m   v1.36.1"
        case ["get", kind_name, name, "-n", namespace, "--ignore-not-found", "-o", "json"]:
            found = objects.get(f"{kind_name}/{namespace}/{name}")
            return json.dumps(found) if found else ""
        case ["wait", "--for=condition=Ready", "node", "--all", timeout] if timeout.startswith("--timeout="):
            return "condition met"
        case ["rollout", "status", deployment, "-n", namespace, timeout] if timeout.startswith("--timeout="):
            pod = objects[deployment.replace("/", f"/{namespace}/")]["spec"]["template"]["spec"]
            for container in pod["containers"]:
                if full_name(container["image"]) not in cluster["images"]:
                    raise Refused(f"error: timed out waiting for the condition: no image {container['image']}")
            return "successfully rolled out"
    raise Refused(f"kubectl: no answer is known for {arguments}")


def kubectl_apply(documents: list[dict[str, Any]], objects: dict[str, Any]) -> str:
    """Store objects, with what an API server adds to Secrets and Services."""
    import base64

    for obj in documents:
        if obj["kind"] == "Secret":
            content = obj.pop("stringData")
            obj["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        if obj["kind"] == "Service":
            obj["spec"]["clusterIP"] = "10.96.12.34"
        name = f"{obj['kind'].lower()}/{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
        objects[name] = obj
    return "serverside-applied"


def helm(arguments: Sequence[str], state: State) -> str:
    """Answer as helm."""
    if list(arguments) == ["version", "--template", "{{.Version}}"]:
        return str(state["versions"]["helm"])
    raise Refused(f"helm: no answer is known for {arguments}")


def read(path: str) -> str:
    """Return the text of a file."""
    with open(path) as handle:
        return handle.read()


def read_yaml(text: str, state: State) -> list[dict[str, Any]]:
    """Return the documents of a YAML text."""
    sys.path.append(state["packages"])
    import yaml

    return list(yaml.safe_load_all(text))


def read_state(file: Path | str) -> State:
    """Return the state, which no call changes meanwhile."""
    state: State = json.loads(read(str(file)))
    return state


def write_state(file: Path | str, state: State) -> None:
    """Replace the state."""
    with open(file, "w") as handle:
        json.dump(state, handle)


PROGRAMS = {"docker": docker, "kind": kind, "kubectl": kubectl, "helm": helm}


def main() -> None:
    """Record the call, then answer it, one call at a time: images are built side by side."""
    file, name, *arguments = sys.argv[1:]
    with open(f"{file}.calls", "a") as calls:
        fcntl.flock(calls, fcntl.LOCK_EX)
        calls.write(json.dumps([name, *arguments]) + "\n")
        state = read_state(file)
        try:
            print(PROGRAMS[name](arguments, state))
        except Refused as refused:
            print(refused, file=sys.stderr)
            sys.exit(refused.status)
        finally:
            write_state(file, state)
