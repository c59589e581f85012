"""Files of the page, read once at startup, so that no part of a URL reaches the file system.

`index.html` and the modules use relative addresses, so that the files work without this module. The server serves all
files except `index.html` below `assets/{digest of all files}/`: browsers cache them permanently, and a new version has
new addresses.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
SHELL = "index.html"
ASSETS = "assets"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".LICENSE": "text/plain; charset=utf-8",
}
"""Media types by suffix. Files with another suffix are refused when the server starts."""
UNCOMPRESSED = frozenset({".png", ".woff2"})
DIGEST_CHARACTERS = 16
ADDRESS = re.compile(r'(\s(?:href|src)=")(?!#|/|[a-z][a-z0-9+.-]*:)([^"]+")')
"""Pattern of relative addresses in the tags of the shell."""
HEAD = "  </head>"
ISSUER = '    <meta name="rlrun-issuer">\n'
"""Element in the shell that indicates login at an OIDC issuer."""
IMPORT_MAP = re.compile(r'(<script type="importmap">)(.*?)(</script>)', re.DOTALL)


class PageInvalid(Exception):
    """Raised if the files of the page cannot be served."""


@dataclass(frozen=True)
class PageFile:
    """Content of a file to serve."""

    content: bytes
    media_type: str
    compressed: bytes | None
    """Content compressed with gzip, or None if the file's type is in UNCOMPRESSED or the result is not smaller."""
    tag: str
    """Digest of the content."""


@dataclass(frozen=True)
class PageFiles:
    """Files of the page to serve."""

    shell: PageFile
    assets: Mapping[str, PageFile]
    """Files by their path below `static`."""
    version: str
    """Digest of all files."""
    script_hash: str
    """Hash of the import map for the Content-Security-Policy, or empty if there is none."""


def load_page(folder: Path = STATIC, *, has_issuer: bool = False) -> PageFiles:
    """Read the page. `has_issuer` enables the login at the OIDC issuer. Raises PageInvalid, OSError."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if SHELL not in contents:
        raise PageInvalid(f"{folder} has no {SHELL}")
    version = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()[:DIGEST_CHARACTERS]
    shell, script_hash = to_shell(contents.pop(SHELL).decode(), f"{ASSETS}/{version}/")
    if has_issuer:
        shell = shell.replace(HEAD, ISSUER + HEAD)
    assets = {name: _file(name, content) for name, content in contents.items()}
    return PageFiles(_file(SHELL, shell.encode()), assets, version, script_hash)


def to_shell(html: str, prefix: str) -> tuple[str, str]:
    """Prepend `prefix` to the relative addresses in the page's HTML. Returns the HTML, and the hash of its
    import map or an empty string.
    """
    html = ADDRESS.sub(rf"\g<1>{prefix}\g<2>", html)
    match = IMPORT_MAP.search(html)
    if match is None:
        return html, ""
    imports = json.loads(match[2])
    imports["imports"] = {
        name: f"./{prefix}{address[2:]}" if address.startswith("./") else address
        for name, address in imports["imports"].items()
    }
    text = json.dumps(imports)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return html[: match.start(2)] + text + html[match.end(2) :], f"sha256-{digest}"


def _file(name: str, content: bytes) -> PageFile:
    suffix = Path(name).suffix
    if suffix not in TYPES:
        raise PageInvalid(f"the media type of the page's file {name} is unknown")
    compressed = None if suffix in UNCOMPRESSED else gzip.compress(content, mtime=0)
    if compressed is not None and len(compressed) >= len(content):
        compressed = None
    return PageFile(content, TYPES[suffix], compressed, hashlib.sha256(content).hexdigest()[:32])
