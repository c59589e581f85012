"""Processes of the pods of the local cluster, which are processes of this machine."""

from pathlib import Path

from demo.kubectl import Object


def processes_of(pods: list[Object], mark: str, without: str = "", proc: Path = Path("/proc")) -> list[int]:
    """Ids of the pods' processes whose command line has the mark, oldest first."""
    uids = [p["metadata"]["uid"] for p in pods]
    marks = [form.encode() for uid in uids for form in (uid, uid.replace("-", "_"))]
    marks += [f"HOSTNAME={p['metadata']['name']}\0".encode() for p in pods]
    found = []
    for folder in sorted((f for f in proc.iterdir() if f.name.isdigit()), key=lambda f: int(f.name)):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if mark not in command or (without and without in command):
                continue
            of_pod = (folder / "cgroup").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if any(m in of_pod for m in marks):
            found.append(int(folder.name))
    return found
