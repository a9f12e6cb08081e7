import pickle

import pytest

from eagleray import errors
from eagleray.errors import EagleRayError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_survive_pickling(kind: type[EagleRayError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(again) is kind
    assert str(again) == "what happened"
    assert issubclass(kind, EagleRayError)
    assert kind.exit_code in range(1, 6)
