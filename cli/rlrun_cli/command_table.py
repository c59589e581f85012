"""All commands of `rlrun` and their summaries for the help page. Does not import the commands' modules."""

from rlrun_cli.terminal.lazy_group import CommandEntry, Entry, GroupEntry

RUNS, CATALOG, PLATFORM = "Runs", "Models, artifacts and environments", "Platform"

CHECKPOINTS = {
    "list": CommandEntry(
        "artifacts.artifacts:list_checkpoints", "List the checkpoints of a run or namespace. `list` is the default."
    ),
    "get": CommandEntry("artifacts.artifacts:get_checkpoint", "Show one checkpoint."),
    "delete": CommandEntry("artifacts.artifacts:delete_checkpoint", "Delete a checkpoint and its files in S3."),
}
ADAPTERS = {
    "list": CommandEntry(
        "artifacts.artifacts:list_adapters", "List the adapters of a run or namespace. `list` is the default."
    ),
    "get": CommandEntry("artifacts.artifacts:get_adapter", "Show one adapter and its URL if it is deployed."),
    "deploy": CommandEntry(
        "artifacts.deployments:deploy_adapter", "Serve an adapter through an OpenAI-compatible API."
    ),
    "undeploy": CommandEntry("artifacts.deployments:undeploy_adapter", "Stop serving an adapter."),
    "delete": CommandEntry("artifacts.artifacts:delete_adapter", "Delete an adapter and its files in S3."),
}
MODELS = {
    "list": CommandEntry("models.models:list_models", "List the models that runs can train. `list` is the default."),
    "get": CommandEntry("models.models:get_model", "Show one model."),
    "add": CommandEntry(
        "models.model_manifests:add_model", "Print a manifest for a model, with an estimate of the GPUs it needs."
    ),
    "push": CommandEntry("models.model_upload:push_model", "Upload the files of a model to the platform's bucket."),
    "check": CommandEntry("models.model_manifests:check_model", "Check the manifest of a model."),
}
ENV = {
    "init": CommandEntry("environments.environment_projects:init_environment", "Create a new environment package."),
    "check": CommandEntry(
        "environments.environment_projects:check_environment", "Check an environment package before you push it."
    ),
    "install": CommandEntry(
        "environments.installation:install_environment",
        "Install an environment package into a local Python environment.",
    ),
    "eval": CommandEntry(
        "environments.evaluation:evaluate_environment",
        "Evaluate a model on an environment package and save the samples.",
    ),
    "list": CommandEntry(
        "environments.environments:list_environments",
        "List the environment packages that runs in the namespace may use.",
    ),
    "info": CommandEntry(
        "environments.environment_projects:show_environment",
        "Show the versions of an environment package and their files.",
    ),
    "push": CommandEntry(
        "environments.environments:push",
        "Build a wheel from DIR and upload it to S3, where runs find it. Prints the id for env.id of a run.",
    ),
}
KEY = {
    "create": CommandEntry("account.keys:create_key", "Create an API key for the namespace and print it."),
    "list": CommandEntry("account.keys:list_keys", "List the API keys of the namespace."),
    "delete": CommandEntry("account.keys:delete_key", "Delete an API key."),
}
SECRETS = {
    "list": CommandEntry(
        "account.secrets:list_secrets", "List the Secrets for run environments, without their values."
    ),
    "set": CommandEntry(
        "account.secrets:set_secret", "Set variables in a Secret from a prompt, standard input or files."
    ),
    "delete": CommandEntry("account.secrets:delete_secret", "Delete a Secret or some of its variables."),
}
ROOT: dict[str, Entry] = {
    "init": CommandEntry("init:init", "Create a commented config file.", RUNS),
    "convert": CommandEntry("convert:convert", "Convert a run between TOML and YAML.", RUNS),
    "validate": CommandEntry("run:validate", "Validate a run's file without a cluster and list all problems.", RUNS),
    "explain": CommandEntry(
        "explain:explain", "Explain a field of a run's file: meaning, type, default and limits.", RUNS
    ),
    "run": CommandEntry("run:run", "Start a run.", RUNS),
    "list": CommandEntry("runs:list_runs", "List runs, newest first, with their phase, progress and reward.", RUNS),
    "ls": CommandEntry("runs:list_runs", "List runs.", RUNS, hidden=True),
    "get": CommandEntry("runs:get_run", "Show the state of one run: progress, conditions and newest artifacts.", RUNS),
    "follow": CommandEntry("follow:follow_run", "Watch a run until it ends: phase, step, reward and time left.", RUNS),
    "logs": CommandEntry("logs:logs", "Print the logs of a run's processes, even after it has ended.", RUNS),
    "metrics": CommandEntry(
        "history:metrics", "Show the metrics of a run by step, even after it has ended.", RUNS, reader="with_plot_file"
    ),
    "rollouts": CommandEntry("history:rollouts", "Show the rollouts of a training step with their rewards.", RUNS),
    "compare": CommandEntry("compare:compare", "Show how the configurations and results of runs differ.", RUNS),
    "stop": CommandEntry("lifecycle:stop_run", "Stop a run permanently and keep its checkpoints and adapters.", RUNS),
    "suspend": CommandEntry("lifecycle:suspend_run", "Pause a run: save a checkpoint and delete its pods.", RUNS),
    "resume": CommandEntry("lifecycle:resume_run", "Continue a suspended run from its newest checkpoint.", RUNS),
    "restart": CommandEntry("lifecycle:restart_run", "Restart an unfinished run from its newest checkpoint.", RUNS),
    "delete": CommandEntry("lifecycle:delete_run", "Delete a run and its pods.", RUNS),
    "models": GroupEntry("List, add, push and check models that runs can train.", MODELS, CATALOG, default="list"),
    "model": GroupEntry("Same as `models`.", MODELS, CATALOG, default="list", hidden=True),
    "checkpoints": GroupEntry(
        "List, show and delete checkpoints that new runs can start from.", CHECKPOINTS, CATALOG, default="list"
    ),
    "adapters": GroupEntry("List, show, deploy and delete adapters.", ADAPTERS, CATALOG, default="list"),
    "download": CommandEntry(
        "artifacts.download:download",
        "Download an adapter or a checkpoint and verify it against its manifest.",
        CATALOG,
    ),
    "chat": CommandEntry("artifacts.chat:chat", "Chat with a deployed adapter and stream its responses.", CATALOG),
    "env": GroupEntry("Manage environment packages, which contain the tasks that runs train on.", ENV, CATALOG),
    "login": CommandEntry(
        "account.logins:login", "Log in to rlrun-server and save the login on this machine.", PLATFORM
    ),
    "logout": CommandEntry(
        "account.logins:logout", "Remove the saved login and delete the API key it created.", PLATFORM
    ),
    "whoami": CommandEntry("account.logins:whoami", "Show the identity that rlrun-server sees.", PLATFORM),
    "open": CommandEntry(
        "account.open_page:open_page", "Open the web page, already logged in, and print its URL.", PLATFORM
    ),
    "doctor": CommandEntry("doctor:doctor", "Check that the cluster has what runs need, and suggest fixes.", PLATFORM),
    "version": CommandEntry("doctor:version", "Show the versions of this program, the platform and its API.", PLATFORM),
    "usage": CommandEntry(
        "account.usage:show_usage", "Show the GPU hours of runs, namespaces, users or models.", PLATFORM
    ),
    "secret": GroupEntry("Manage Secrets for run environments.", SECRETS, CATALOG),
    "key": GroupEntry("Manage API keys, for programs without a Kubernetes login.", KEY, PLATFORM),
    "gc": CommandEntry("gc:gc", "List unreferenced files and objects, and optionally delete them.", PLATFORM),
    "restore": CommandEntry(
        "restore:restore", "Recreate lost checkpoint and adapter objects from the bucket.", PLATFORM
    ),
}
