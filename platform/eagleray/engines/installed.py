"""The source of an engine's package, read without importing it: from an environment, or from a wheel."""

import ast
import email
import fnmatch
import zipfile
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from eagleray.errors import EngineError


class _Files(Protocol):
    def names(self) -> list[str]: ...

    def read(self, name: str) -> str: ...


class Installed:
    """One version of a package."""

    def __init__(self, package: str, version: str, files: _Files, origin: Path):
        self.package = package
        self.version = version
        self.origin = origin
        self._files = files

    @classmethod
    def find(cls, environment: Path, package: str) -> "Installed":
        """Find a package in a Python environment.

        Raises:
            EngineError: The environment does not hold it.
        """
        for site in sorted(environment.absolute().glob("lib/python3*/site-packages")):
            if not (site / package).is_dir():
                continue
            # CPU builds come under another name and are known to the engine under its own.
            for metadata in sorted(site.glob(f"{package}*-*.dist-info/METADATA")):
                told = email.message_from_string(metadata.read_text(encoding="utf-8", errors="replace"))
                if str(told["Name"]).startswith(package) and told["Version"]:
                    version = str(told["Version"]).partition("+")[0]
                    return cls(package, version, _Folder(site / package), site)
        raise EngineError(
            f"There is no {package} in {environment}. Make an environment of its own for it (see "
            "docs/engines.md), and name it in `environment` of the engine."
        )

    @classmethod
    def open_wheel(cls, wheel: Path) -> "Installed":
        """Read a wheel."""
        package, version = wheel.name.split("-")[:2]
        package = package.partition("_")[0]
        return cls(package, version.partition("+")[0], _Wheel(wheel, package), wheel)

    def fields(self, *patterns: str) -> set[str]:
        """Names that classes in some files declare with a type: settings of data classes and models."""
        return self._declared(patterns)[0]

    def texts(self, *patterns: str) -> set[str]:
        """String constants in some files."""
        return self._declared(patterns)[1]

    def symbols(self, *patterns: str) -> set[str]:
        """Names of classes, functions and attributes in some files: what code built on theirs uses."""
        return self._declared(patterns)[2]

    @cache  # noqa: B019 - one of a handful of packages, kept for as long as a doctor looks
    def _declared(self, patterns: tuple[str, ...]) -> tuple[set[str], set[str], set[str]]:
        fields: set[str] = set()
        texts: set[str] = set()
        symbols: set[str] = set()
        for node in self._nodes(patterns):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                symbols.add(node.name)
            elif isinstance(node, ast.Attribute):
                symbols.add(node.attr)
            if isinstance(node, ast.ClassDef):
                annotated = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
                fields |= {target.id for target in annotated if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
        return fields, texts, symbols

    def _nodes(self, patterns: tuple[str, ...]) -> Iterator[ast.AST]:
        for name in self._names:
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                yield from ast.walk(ast.parse(self._files.read(name)))

    @cached_property
    def _names(self) -> list[str]:
        return self._files.names()


class _Folder:
    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        return [path.relative_to(self._root).as_posix() for path in sorted(self._root.rglob("*.py"))]

    def read(self, name: str) -> str:
        return (self._root / name).read_text(encoding="utf-8")


class _Wheel:
    def __init__(self, wheel: Path, package: str):
        self._archive = zipfile.ZipFile(wheel)
        self._prefix = f"{package}/"

    def names(self) -> list[str]:
        inside = (name for name in self._archive.namelist() if name.startswith(self._prefix))
        return sorted(name.removeprefix(self._prefix) for name in inside if name.endswith(".py"))

    def read(self, name: str) -> str:
        return self._archive.read(self._prefix + name).decode()
