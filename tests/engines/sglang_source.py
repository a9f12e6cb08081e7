"""What SGLang's source says of the drafter folders it loads, read without installing or importing it.

Its loaders skip tensors they do not know and keys they do not read, without an error. So the names that
its modules have and the keys that its code reads are taken from the syntax trees of the pinned wheel.
"""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "0.5.23"


def download(cache: Path, version: str = VERSION) -> Path:
    """The wheel of a version, by default the pinned one, without its dependencies; fetched once."""
    pattern = f"sglang-{version}-*.whl"
    if not list(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(cache), f"sglang=={version}"], check=True)
    return next(cache.glob(pattern))


class Source:
    """Classes and functions of some files of the wheel."""

    def __init__(self, wheel: Path, *files: str):
        with zipfile.ZipFile(wheel) as archive:
            self._trees = [ast.parse(archive.read(f"sglang/srt/{name}")) for name in files]

    def class_names(self) -> set[str]:
        """Classes; a model is registered by the name of its class."""
        return {node.name for node in self._nodes() if isinstance(node, ast.ClassDef)}

    def module_names(self) -> set[str]:
        """Every name that some class gives to a part of itself: `self.<name> = ...`."""
        return {
            target.attr
            for node in self._nodes()
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute) and ast.unparse(target.value).startswith("self")
        }

    def loader_renames(self) -> dict[str, str]:
        """Name parts that a loader replaces by others: its mappings of old names and of fused matrices."""
        renames: dict[str, str] = {}
        for node in self._nodes():
            if isinstance(node, ast.Tuple) and len(node.elts) == 3:
                # (name in SGLang, name in the checkpoint, which part of the fused matrix)
                new, old = (getattr(part, "value", None) for part in node.elts[:2])
                if isinstance(new, str) and isinstance(old, str):
                    renames[old.strip(".")] = new.strip(".")
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        renames[str(key.value)] = str(value.value)
        return renames

    def texts(self) -> set[str]:
        """Every string constant and every attribute that is read: keys of a configuration are among them."""
        found = {node.value for node in self._nodes() if isinstance(node, ast.Constant)}
        return {str(text) for text in found} | {
            node.attr for node in self._nodes() if isinstance(node, ast.Attribute)
        }

    def _nodes(self) -> Iterator[ast.AST]:
        for tree in self._trees:
            yield from ast.walk(tree)
