"""Received data has one parser, `rlrun.api.base.received`, whose limits hold for whatever a sender writes."""

import pytest

from tests.support.parser_calls import parser_calls, places_in

CLI = "a person runs it with his own files and his own installation: it costs him only"
OWN = "this program, or one of its own processes, has written it"
FOLDER = "a file in the pod of the run that reads it: it costs this run only"
ALLOWED = {
    "core/rlrun/api/base/received.py:parse": "the parser",
    "core/rlrun/api/base/received.py:read_fast": "the parser",
    "core/rlrun/api/base/received.py:read_json": "the parser",
    "core/rlrun/api/base/received.py:read_stored": "the parser",
    "core/rlrun/installation/checks.py:check_run": "a variable that the chart sets",
    "core/rlrun/api/toml/loader.py:_read": "files of the CLI; rlrun-server calls check_toml before",
    "core/rlrun/storage/metric_files.py:parse_lines": CLI,
    "core/rlrun/storage/samples/object_file.py:_check_rows": "counts rows; ReadLimits bound the text",
    "core/rlrun/storage/samples/object_file.py:decode_index": "ReadLimits bound the text and its rows",
    "core/rlrun/storage/samples/record.py:SampleRecord.from_line": "ReadLimits bound the line",
    "operator/rlrun_operator/config/settings.py:parse_settings": "the administrator's settings",
    "operator/rlrun_operator/planning/children.py:_in_the_keys_of": OWN,
    "operator/rlrun_operator/planning/spec.py:_parse": OWN,
    "orchestrator_image/rlrun_engine_access/body.py:check_prompt": "MAX_BODY bounds it, and vLLM parses it too",
    "orchestrator_image/rlrun_engine_access/order.py:_parse": OWN,
    "orchestrator_image/rlrun_engine_access/response_usage.py:_tokens": "MAX_OBJECT bounds it",
    "orchestrator_image/rlrun_environment/worker/verifiers_runner.py:GatewayClient._send_shared": OWN,
    "orchestrator_image/rlrun_orchestrator/reporting/wandb_client.py:WandbLog._watch": OWN,
    "orchestrator_image/rlrun_orchestrator/reporting/wandb_process.py:main": OWN,
    "orchestrator_image/rlrun_orchestrator/storage/state_files.py:parse_object": OWN,
    "orchestrator_image/rlrun_orchestrator/storage/upload_spool.py:UploadSpool._load_files": OWN,
    "server/rlrun_server/authentication/account_tokens.py:account_uid_of": "a token that the API server has made",
    "server/rlrun_server/authentication/api_key.py:_from_json": OWN,
    "server/rlrun_server/authentication/oidc_login.py:OidcLogin.open_login": "sealed by this program",
    "server/rlrun_server/authentication/sessions.py:BrowserSessions._open": "sealed by this program",
    "server/rlrun_server/authentication/users.py:Users._user_of_issuer": "sealed by this program",
    "server/rlrun_server/hosted_api/routes/sample_routes.py:samples_of": "a record that this program has written",
    "server/rlrun_server/http/yaml_and_toml.py:check_toml": "counts values and levels before",
    "server/rlrun_server/http/yaml_and_toml.py:read_yaml": "its loader counts values and levels",
    "server/rlrun_server/page/page_files.py:to_shell": "a file of the image",
    "server/rlrun_server/rest/metrics/metric_columns.py:numeric_lines": "check_limits bounds the line",
    "server/rlrun_server/runtime/settings.py:ServerSettings._parse_json": "the administrator's settings",
    "server/vendor.py:main": "a file of the repository",
    "trainer_image/rlrun_trainer/artifacts/checkpoint_facts.py:read_facts": FOLDER,
    "trainer_image/rlrun_trainer/artifacts/checkpoint_facts.py:read_orchestrator_state": FOLDER,
    "trainer_image/rlrun_trainer/artifacts/checkpoint_names.py:stored_weights": FOLDER,
    "trainer_image/rlrun_trainer/artifacts/model_folder.py:ModelClass.of": FOLDER,
    "trainer_image/rlrun_trainer/artifacts/model_folder.py:copy_companions": FOLDER,
    "trainer_image/rlrun_trainer/runtime/messages.py:MessageFormat.decode": OWN,
}
"""Places that may parse by themselves, with the reason. Those of the CLI need none."""


def test_received_data_is_parsed_by_the_one_parser() -> None:
    found = {place for place in parser_calls() if not place.startswith("cli/")}
    assert not found - ALLOWED.keys(), "call a function of rlrun.api.base.received, or add the place with its reason"
    assert not ALLOWED.keys() - found, "these no longer parse: remove them"


@pytest.mark.parametrize(
    "planted",
    [
        "import json\ndef f(x): return json.loads(x)",
        "import json as j\ndef f(x): return j.load(x)",
        "from json import loads as read\ndef f(x): return read(x)",
        "import yaml\ndef f(x): return yaml.safe_load_all(x)",
        "import pickle\ndef f(x): return pickle.loads(x)",
        "import ast\ndef f(x): return ast.literal_eval(x)",
        "from pydantic_core import from_json\ndef f(x): return from_json(x)",
        "def f(x): return Model.model_validate_json(x)",
        "def f(x): return adapter.validate_json(x)",
        "async def f(x): return await response.json()",
        "def f(x): return list(map(Model.model_validate_json, x))",
    ],
)
def test_another_parser_is_found(planted: str) -> None:
    assert places_in(planted) == {"f"}


def test_other_functions_are_not_parsers() -> None:
    assert not places_in("import json\ndef f(x): return json.dumps(x), store.load(x), parse(Model, x)")
