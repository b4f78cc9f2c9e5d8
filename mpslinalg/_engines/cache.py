"""Compiled code on disk, keyed by everything that made it."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .source import ShaderError


@functools.cache
def folder() -> Path:
    """Where compiled kernels are kept: MPSLINALG_CACHE, else the user's cache folder.

    A folder that cannot be written gives way to a temporary one for this process.
    """
    # Imported late: `import mpslinalg` is to be quick.
    import platformdirs

    chosen = os.environ.get("MPSLINALG_CACHE") or platformdirs.user_cache_dir("mpslinalg")
    path = Path(chosen).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            return path
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="mpslinalg-"))
        atexit.register(shutil.rmtree, path, ignore_errors=True)
        return path


def stored(parts: tuple[str, ...], suffix: str, build: Callable[[Path], None]) -> Path:
    """The file made by `build(path)` for these parts of text, made at most once.

    Two processes may build the same file at once: each writes its own and moves it into place.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = folder() / f"{digest}{suffix}"
    if not path.exists():
        try:
            with tempfile.TemporaryDirectory(dir=folder(), prefix="building-") as scratch:
                fresh = Path(scratch) / f"built{suffix}"
                build(fresh)
                os.replace(fresh, path)
        except OSError as error:
            raise ShaderError(
                f"mpslinalg: no compiled kernel can be kept in {folder()} ({error}); name another "
                "folder in MPSLINALG_CACHE"
            ) from error
    return path
