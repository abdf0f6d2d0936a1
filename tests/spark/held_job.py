"""Runs a job that stands still between its work on a batch and the acks: ``FILE job options``.

The file is created when it stands there; from then on it can only be killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from app.cli import main
from connections.spark.jobs.ack_report import Publish
from connections.spark.jobs.archive import Archive
from connections.spark.jobs.validate import Validate


def hold(function: Any, mark: Path) -> None:
    """Make a batch function stand still after its first batch with rows."""
    work = function.__call__

    def held(self: Any, df: Any, batch_id: int) -> Any:
        result = work(self, df, batch_id)
        if not df.isEmpty():
            mark.touch()
            threading.Event().wait()
        return result

    function.__call__ = held


if __name__ == "__main__":
    for one in (Archive, Validate, Publish):
        hold(one, Path(sys.argv[1]))
    main(["spark", *sys.argv[2:]])
