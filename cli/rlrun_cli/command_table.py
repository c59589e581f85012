"""All commands of `rlrun`, with their lines in the help page. Imports none of their modules."""

from rlrun_cli.terminal.lazy_group import CommandEntry, Entry, GroupEntry

RUNS, CATALOG, PLATFORM = "Runs", "Models, artifacts and environments", "Platform"
COMMANDS = "rlrun_cli.commands"

ENV = {
    "push": CommandEntry(
        f"{COMMANDS}.environments:push",
        "Build a wheel from DIR and upload it to S3, where runs find it. Prints the id for env.id of a run.",
        epilog="EPILOG",
    ),
}
KEY = {
    "create": CommandEntry(
        f"{COMMANDS}.keys:create_key", "Create an API key of the namespace and print it.", epilog="CREATE_EPILOG"
    ),
    "list": CommandEntry(f"{COMMANDS}.keys:list_keys", "List the API keys of the namespace.", epilog="LIST_EPILOG"),
    "delete": CommandEntry(
        f"{COMMANDS}.keys:delete_key", "Delete an API key of the namespace.", epilog="DELETE_EPILOG"
    ),
}
ROOT: dict[str, Entry] = {
    "init": CommandEntry(
        f"{COMMANDS}.init:init", "Write a commented config file to start from.", epilog="EPILOG", panel=RUNS
    ),
    "run": CommandEntry(f"{COMMANDS}.run:run", "Start a run.", epilog="EPILOG", panel=RUNS),
    "list": CommandEntry(
        f"{COMMANDS}.runs:list_runs",
        "List runs, newest first, with their phase, progress and reward.",
        epilog="LIST_EPILOG",
        panel=RUNS,
    ),
    "ls": CommandEntry(f"{COMMANDS}.runs:list_runs", "List runs.", epilog="LIST_EPILOG", panel=RUNS, hidden=True),
    "get": CommandEntry(
        f"{COMMANDS}.runs:get_run",
        "Show the state of one run: progress, conditions and newest artifacts.",
        epilog="GET_EPILOG",
        panel=RUNS,
    ),
    "follow": CommandEntry(
        f"{COMMANDS}.follow:follow_run",
        "Watch a run until it ends: phase, step, reward and time left.",
        epilog="EPILOG",
        panel=RUNS,
    ),
    "logs": CommandEntry(
        f"{COMMANDS}.logs:logs",
        "Print the logs of a run's processes, also after its end.",
        epilog="EPILOG",
        panel=RUNS,
    ),
    "metrics": CommandEntry(
        f"{COMMANDS}.history:metrics",
        "Show the metrics of a run by step, also after its end.",
        epilog="METRICS_EPILOG",
        panel=RUNS,
    ),
    "rollouts": CommandEntry(
        f"{COMMANDS}.history:rollouts",
        "Show the rollouts that a step was trained on, with their rewards.",
        epilog="ROLLOUTS_EPILOG",
        panel=RUNS,
    ),
    "stop": CommandEntry(
        f"{COMMANDS}.runs:stop_run",
        "End a run for good and keep its checkpoints and adapters.",
        epilog="STOP_EPILOG",
        panel=RUNS,
    ),
    "delete": CommandEntry(
        f"{COMMANDS}.runs:delete_run", "Delete a run and its pods.", epilog="DELETE_EPILOG", panel=RUNS
    ),
    "models": CommandEntry(
        f"{COMMANDS}.artifacts:models", "List the models that runs can train.", epilog="MODELS_EPILOG", panel=CATALOG
    ),
    "checkpoints": CommandEntry(
        f"{COMMANDS}.artifacts:checkpoints",
        "List the checkpoints of a run or namespace.",
        epilog="CHECKPOINTS_EPILOG",
        panel=CATALOG,
    ),
    "adapters": CommandEntry(
        f"{COMMANDS}.artifacts:adapters",
        "List the adapters of a run or namespace.",
        epilog="ADAPTERS_EPILOG",
        panel=CATALOG,
    ),
    "download": CommandEntry(
        f"{COMMANDS}.download:download",
        "Download an adapter or a checkpoint and verify it against its manifest.",
        epilog="EPILOG",
        panel=CATALOG,
    ),
    "env": GroupEntry("Manage environment packages, the code that runs train on.", ENV, panel=CATALOG),
    "key": GroupEntry("Manage API keys, for programs without a Kubernetes login.", KEY, panel=PLATFORM),
    "gc": CommandEntry(
        f"{COMMANDS}.gc:gc", "List unreferenced files and objects, and delete them.", epilog="EPILOG", panel=PLATFORM
    ),
}
