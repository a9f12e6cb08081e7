"""Prints where `platform` was imported from; started with `python -m` from the repository root."""

import platform

import eagleray  # noqa: F401 - proves that both can be imported together

assert platform.system(), "platform is not the standard library's"
print(platform.__file__)
