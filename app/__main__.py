"""``python -m app`` is ``ackgate``."""

from app.cli import main

main(prog_name="ackgate")
