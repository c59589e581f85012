import pytest
from rlrun_cli.inputs.positions import line_of, toml_lines, yaml_lines

TOML = """\
model = "a/b"   # 1

[sampling]
max_tokens = 4
[[env]]
id = "a/b"
args = { x = 1 }
[env.taskset]
text = '''
not_a_key = 1
'''
[[env]]
id = "c/d"
buffer.seed = 1
"""
YAML = """\
spec:
  env:
    - id: a/b
      args: &x {n: 1}
    - {id: c/d, args: *x}
  model: a/b
  model: a/c
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("model", 1), ("sampling", 3), ("sampling.max_tokens", 4), ("sampling.top_p", 3), ("env[0].id", 6),
        ("env[0].args.x", 7), ("env[0].taskset.text", 9), ("env[0].taskset.not_a_key", 8), ("env[1].id", 13),
        ("env[1]", 12), ("env[1].buffer.seed", 14), ("nothing", None), ("", None),
    ],
)  # fmt: skip
def test_lines_of_toml(path: str, line: int | None) -> None:
    assert line_of(path, toml_lines(TOML)) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [("spec", 1), ("spec.env[0].id", 3), ("spec.env[0].args.n", 4), ("spec.env[1].id", 5), ("spec.env[1].no", 5)],
)
def test_lines_of_yaml(path: str, line: int) -> None:
    lines, repeated = yaml_lines(YAML)
    assert line_of(path, lines) == line
    assert repeated == [("spec.model", 7)]
