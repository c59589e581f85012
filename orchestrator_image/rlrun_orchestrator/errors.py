"""How a run ends badly: one exception that carries what a person should read and whether a restart could help."""

from rlrun.schema.wire import Problem

EXIT_COMPLETED = 0
EXIT_RESTART = 1
EXIT_CONFIGURATION = 64
"""A mistake in the run or its surroundings that another attempt would only meet again (sysexits' EX_USAGE)."""


class RunFailed(Exception):
    """This attempt cannot go on. `exit_code` tells the Job whether another attempt makes sense."""

    def __init__(self, problem: Problem, exit_code: int = EXIT_RESTART) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.exit_code = exit_code
