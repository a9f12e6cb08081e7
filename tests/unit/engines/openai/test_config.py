"""Addresses and keys in recipes."""

import pytest

from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.errors import ConfigError
from eagleray.settings import validate


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_is_the_same_with_and_without_v1(url: str) -> None:
    assert OpenAIEngineConfig(url=url).url == "http://h:1"


def test_a_path_before_v1_is_kept() -> None:
    assert OpenAIEngineConfig(url="https://gateway/team/v1").url == "https://gateway/team"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "localhost:8000"}, "expected an address like"),
        ({"url": "ftp://h/v1"}, "expected an address like"),
        ({"url": "http://h/v1?x=1"}, "expected an address like"),
        ({"url": "http://me:secret@h/v1"}, "api_key_env"),
        ({"url": "http://h", "api_key_env": "sk-abc123"}, "api_key_env"),
        ({"url": "http://h", "max_concurrency": 0}, "max_concurrency"),
    ],
)
def test_what_is_no_address_or_no_name_of_a_variable_is_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        validate(OpenAIEngineConfig, settings, "recipe")
