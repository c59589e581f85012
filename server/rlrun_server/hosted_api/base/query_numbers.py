"""Numbers in the queries of hosted clients, which send what a user types. Beyond the last row, nothing is selected."""

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from rlrun_server.rest.metrics.metric_columns import MAX_STEP

MAX_NUMBER = 2**53
"""The largest whole number that all JSON clients read."""

StepNumber = Annotated[int, Field(ge=0), AfterValidator(partial(min, MAX_STEP))]
"""Step, at most MAX_STEP, which is more than maxSteps may be."""
PageNumber = Annotated[int, Field(ge=1), AfterValidator(partial(min, MAX_NUMBER))]
Offset = Annotated[int, Field(ge=0), AfterValidator(partial(min, MAX_NUMBER))]
RowCount = Annotated[int, Field(ge=1), AfterValidator(partial(min, MAX_NUMBER))]
"""Number of rows for routes that bound it themselves."""
