"""The files of the page as they are read: addresses, digests and types."""

import base64
import gzip
import hashlib
import json
import re
from itertools import accumulate
from pathlib import Path

import pytest
from rlrun_server.page.page_files import IMPORT_MAP, STATIC, PageInvalid, load_page, to_shell

SHELL = """<html><head>
<link rel="icon" href="icon.svg"><link rel="stylesheet" href="css/base.css">
<script type="importmap">{"imports": {"preact": "./vendor/preact.mjs", "x": "https://x.org"}}</script>
<script type="module" src="main.js"></script>
</head><body><a href="#/runs">a</a><a href="/rlrun/v1">b</a><a href="https://x.org">c</a><a data-href="d">d</a></body>
"""


def test_relative_addresses_have_the_prefix_and_others_do_not() -> None:
    shell, _ = to_shell(SHELL, "assets/0123/")
    for address in ("assets/0123/icon.svg", "assets/0123/css/base.css", "assets/0123/main.js"):
        assert f'="{address}"' in shell
    for address in ('href="#/runs"', 'href="/rlrun/v1"', 'href="https://x.org"', 'data-href="d"'):
        assert address in shell
    found = IMPORT_MAP.search(shell)
    assert found is not None
    assert json.loads(found[2])["imports"] == {"preact": "./assets/0123/vendor/preact.mjs", "x": "https://x.org"}


def test_the_hash_is_that_of_the_import_map_as_it_is_sent() -> None:
    shell, script_hash = to_shell(SHELL, "assets/0123/")
    found = IMPORT_MAP.search(shell)
    assert found is not None
    assert script_hash == "sha256-" + base64.b64encode(hashlib.sha256(found[2].encode()).digest()).decode()


def test_the_page_offers_the_login_at_the_issuer_if_there_is_one() -> None:
    shells = [load_page(has_issuer=has_issuer).shell.content for has_issuer in (False, True)]
    assert [b'<meta name="rlrun-issuer">' in shell for shell in shells] == [False, True]


def test_a_changed_file_changes_all_addresses(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(SHELL)
    (tmp_path / "main.js").write_text("// " + "a" * 500)
    first = load_page(tmp_path)
    assert load_page(tmp_path) == first
    (tmp_path / "main.js").write_text("// b")
    second = load_page(tmp_path)
    assert first.version != second.version
    assert f"assets/{second.version}/main.js".encode() in second.shell.content


def test_files_are_compressed_if_that_makes_them_smaller(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(SHELL)
    (tmp_path / "main.js").write_text("// " + "a" * 500)
    (tmp_path / "small.js").write_text("//")
    found = load_page(tmp_path).assets
    compressed = found["main.js"].compressed
    assert compressed is not None
    assert gzip.decompress(compressed) == found["main.js"].content
    assert found["small.js"].compressed is None
    assert "index.html" not in found


@pytest.mark.parametrize("name", ["secret.pem", "main.py", "noise"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "index.html").write_text(SHELL)
    (tmp_path / name).write_text("x")
    with pytest.raises(PageInvalid, match=name):
        load_page(tmp_path)


def test_a_page_without_a_shell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PageInvalid, match=r"index\.html"):
        load_page(tmp_path)


@pytest.mark.parametrize("name", sorted(path.name for path in (STATIC / "css").glob("*.css")))
def test_braces_of_a_style_sheet_match(name: str) -> None:
    # Browsers drop the rule that follows a brace too many.
    text = re.sub(r"/\*.*?\*/", "", (STATIC / "css" / name).read_text(), flags=re.DOTALL)
    depths = list(accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in text))
    assert min(depths) == 0
    assert depths[-1] == 0
