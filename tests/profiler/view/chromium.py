"""Finds a Chromium on this machine: the page is tried in a real browser, without a window."""

from __future__ import annotations

import shutil

from resilin._base import env

VARIABLE = "RESILIN_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = f"no Chromium is there: on Debian `apt install chromium`; or {VARIABLE}=PROGRAM"
# Its sandbox needs rights that root in a container has not; what it opens here is ours. It draws without a GPU.
FLAGS = ["--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"]


def found() -> str | None:
    """The program, or None."""
    named = env.get(VARIABLE)
    return named or next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
