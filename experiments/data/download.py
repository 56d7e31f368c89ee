"""Fetching one file over HTTP: resumed, verified, put in place in one step, by one job at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path

CHUNK = 1 << 20
TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""

ATTEMPTS = 5


class DownloadError(Exception):
    """The file could not be fetched; the message says why."""


def download(url: str, target: Path, md5: str) -> None:
    """Fetch `url` to `target`, unless it is there already.

    What has arrived is kept in ``target.part`` and a later call goes on from there. `target` itself appears
    only when it is complete and its MD5 is `md5`. A second job that wants the same file waits for the first.

    Raises:
        DownloadError: no connection, it broke for good, wrong content, or nowhere to write.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".lock")):
            if target.exists():  # the job that had the lock has fetched it
                return
            print(f"downloading {url} to {target}", file=sys.stderr, flush=True)
            _fetch(url, part)
            found = _md5(part)
            if found != md5:
                part.unlink()
                raise DownloadError(f"what came has the MD5 {found}, not {md5}; it was deleted")
            os.replace(part, target)
    except OSError as error:
        raise DownloadError(str(error)) from error


def _fetch(url: str, part: Path) -> None:
    """Append to `part` until it is complete; a connection that breaks is taken up again where it ended."""
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            if _fetch_once(url, part):
                return
            problem = f"the connection broke after {_size(part):,} bytes"
        except urllib.error.HTTPError as error:
            raise DownloadError(f"the server answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            problem = f"{getattr(error, 'reason', error) or type(error).__name__}"
        if attempt == ATTEMPTS or _size(part) <= before:
            raise DownloadError(problem)


def _fetch_once(url: str, part: Path) -> bool:
    """One request for what is missing; True when the file is complete."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # there is nothing after the part; whether it is right, the MD5 tells
            return True
        raise
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        with open(part, "ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
    return length is None or _size(part) == int(length) + (have if resumed else 0)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. It stays: removing it would let a third job in beside one that waits."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
