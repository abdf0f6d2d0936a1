"""Wires that leave the process: so far Spark."""
