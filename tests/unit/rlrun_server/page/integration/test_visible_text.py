"""Characters of users that change the order of others, or have no width, are visible on the page."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rlrun_cli.terminal.errors import ESCAPES
from rlrun_server.page.page_files import STATIC

DENO = shutil.which("deno", path=str(Path(sys.executable).parent))
TEXT = "safe\u202egpj.exe\u200b \U000e0041 ok 👍 日本語\n"


def evaluate(script: str, folder: Path) -> Any:
    """Return what a module of JavaScript prints, with the page's own files."""
    assert DENO is not None
    imports = {
        "preact": (STATIC / "vendor" / "preact.mjs").as_uri(),
        "preact/hooks": (STATIC / "vendor" / "hooks.mjs").as_uri(),
        "htm": (STATIC / "vendor" / "htm.mjs").as_uri(),
    }
    (folder / "deno.json").write_text(json.dumps({"imports": imports}))
    (folder / "main.js").write_text(script)
    command = [DENO, "run", "--quiet", "--no-remote", "--no-check", "--config", "deno.json", "--allow-read", "main.js"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_text_and_titles_of_elements_are_escaped_and_values_of_fields_are_not(tmp_path: Path) -> None:
    found = evaluate(
        f"""
        import {{ html }} from "{(STATIC / "lib" / "html.js").as_uri()}";
        const text = {json.dumps(TEXT)};
        const made = html`<p title=${{text}}>${{text}}<input value=${{text}} />${{[text]}}</p>`;
        const [first, field, [second]] = made.props.children;
        console.log(JSON.stringify([first, second, made.props.title, field.props.value]));
        """,
        tmp_path,
    )
    shown = TEXT.translate(ESCAPES)
    assert shown == "safe\\u202egpj.exe\\u200b \\U000e0041 ok 👍 日本語\n"
    assert found == [shown, shown, shown, TEXT]


def test_the_page_escapes_what_the_command_line_escapes(tmp_path: Path) -> None:
    found = evaluate(
        f"""
        import {{ visibleText }} from "{(STATIC / "lib" / "escapes.js").as_uri()}";
        const escaped = {{}};
        for (let code = 0; code < 0x110000; code++) {{
          const one = String.fromCodePoint(code);
          if (visibleText(one) !== one) escaped[code] = visibleText(one);
        }}
        console.log(JSON.stringify(escaped));
        """,
        tmp_path,
    )
    assert {int(code): text for code, text in found.items()} == ESCAPES


@pytest.fixture(autouse=True)
def deno_has_no_cache_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENO_DIR", str(tmp_path / "deno"))
    monkeypatch.setenv("DENO_NO_UPDATE_CHECK", "1")
