"""Every container and row form that prompt files may have."""

from eagleray.corpus.inputs.base import Container, Row, RowError, RowForm
from eagleray.corpus.inputs.benchmark_rows import BenchmarkRows, FunctionRows, QuestionRows
from eagleray.corpus.inputs.chat_rows import ChatRows
from eagleray.corpus.inputs.json_array import JsonArray
from eagleray.corpus.inputs.json_lines import JsonLines
from eagleray.corpus.inputs.opening import COMPRESSIONS
from eagleray.corpus.inputs.parquet import Parquet
from eagleray.corpus.inputs.plain_rows import PlainRows
from eagleray.corpus.inputs.serving_logs import ServingLogs
from eagleray.errors import DataError

CONTAINERS: tuple[Container, ...] = (JsonLines(), JsonArray(), Parquet())

FORMS: tuple[RowForm, ...] = (
    ServingLogs(),
    ChatRows(),
    FunctionRows(),
    PlainRows(),
    QuestionRows(),
    BenchmarkRows(),
)
"""In the order in which they may claim a row."""


def container_of(suffix: str, path: str) -> Container:
    """Return the container for a file ending.

    Raises:
        DataError: Lists the endings that are known.
    """
    for container in CONTAINERS:
        if suffix in container.suffixes:
            return container
    known = ", ".join(suffix for container in CONTAINERS for suffix in container.suffixes)
    raise DataError(
        f"Prompts file {path} ends in {suffix or 'nothing'}; expected one of {known}, "
        f"perhaps followed by one of {', '.join(COMPRESSIONS)}. Rename it."
    )


def form_of(row: Row) -> RowForm:
    """Return the form that claims a row.

    Raises:
        RowError: None does.
    """
    for form in FORMS:
        if form.claims(row):
            return form
    wanted = ", ".join(form.keys for form in FORMS)
    raise RowError(f"has none of {wanted}; its keys are {sorted(row)}")
