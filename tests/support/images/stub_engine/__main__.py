"""`python -m tests.support.images.stub_engine MODEL [FLAG...]`: an engine without weights, for tests on a cluster.

It takes the arguments and variables that the operator gives to `vllm serve`, and answers the same routes in the same
form, behind the same middleware. Contrary to vLLM it starts in a second and needs no memory. What it draws follows from
the seed, the prompt and the digest of the weights; it learns nothing.
"""

import os
import sys

import uvicorn

from tests.support.images.stub_engine.app import create_app
from tests.support.images.stub_engine.arguments import parse_arguments

CLOSE_SECONDS = 2
"""Time for requests in progress after SIGTERM."""


def main() -> None:
    """Serve until SIGTERM."""
    arguments = parse_arguments(sys.argv[1:])
    app = create_app(arguments, os.environ)
    uvicorn.run(app, host=arguments.host, port=arguments.port, timeout_graceful_shutdown=CLOSE_SECONDS)


if __name__ == "__main__":
    main()
